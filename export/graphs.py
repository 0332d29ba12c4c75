"""Writes the graphs of a bundle in the target's dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from edgechat.bundle import Graph
from edgechat.export.decoder import build_decoder
from edgechat.export.dialects.allow_list import check_graph
from edgechat.export.dialects.base import Dialect
from edgechat.export.dialects.ort_cpu import OPSETS, OrtCpu
from edgechat.export.dialects.tensorrt import TensorRt
from edgechat.export.dialects.tensorrt_10_3 import TensorRt103
from edgechat.export.dialects.tensorrt_10_15 import TensorRt1015
from edgechat.export.dialects.tensorrt_compact import build_compact
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.recipe import Recipe

TENSORRT: dict[str, type[TensorRt]] = {
    "tensorrt_10_3": TensorRt103,
    "tensorrt_10_15": TensorRt1015,
}
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Graphs:
    """What the manifest says of them; ``files`` are their names."""

    decoder: Graph
    compact: Graph | None
    files: list[str]
    weight_bytes_per_token: int


def write_graphs(
    folder: Path,
    name: str,
    recipe: Recipe,
    precision: str,
    capacity: int,
    importance: bool,
    progress: Progress,
) -> Graphs:
    """Write the decoder, and for TensorRT the compact graph, in the dialect ``name``.

    Raises UnsupportedModelError where the dialect's TensorRT would not take them. float32 is for
    comparing with the model on ONNX Runtime, and is not checked: TensorRT builds no float32
    attention.
    """
    if name in TENSORRT:
        graphs = _write_tensorrt(folder, name, recipe, precision, capacity, importance, progress)
        for written in (graphs.decoder, graphs.compact):
            if written is not None and precision != "fp32":
                check_graph(onnx.load(folder / written.file, load_external_data=False), name)
        return graphs
    files = ["model.onnx", "model.data"]
    with GraphBuilder(folder / files[0], folder / files[1], OPSETS) as graph:
        dialect = OrtCpu(
            graph,
            recipe.spec,
            blocks=precision != "fp32",
            max_capacity=capacity,
            kv_scales=recipe.kv_scales,
            importance=importance,
        )
        decoder = _build(graph, name, recipe, dialect, progress)
    return Graphs(decoder, None, files, dialect.weight_bytes_per_token)


def _write_tensorrt(
    folder: Path,
    name: str,
    recipe: Recipe,
    precision: str,
    capacity: int,
    importance: bool,
    progress: Progress,
) -> Graphs:
    cls, dtype = TENSORRT[name], "float32" if precision == "fp32" else "float16"
    files = ["model.onnx", "model.data", "compact.onnx", "compact.data"]
    with GraphBuilder(folder / files[0], folder / files[1], cls.opsets) as graph:
        int8 = precision.startswith("int8")
        dialect = cls(graph, recipe.spec, dtype, int8, capacity, importance)
        decoder = _build(graph, name, recipe, dialect, progress)
    with GraphBuilder(folder / files[2], folder / files[3], cls.opsets) as graph:
        contract = build_compact(graph, recipe.spec, dtype, capacity)
        graph.save()
    compact = Graph(files[2], name, *contract)
    return Graphs(decoder, compact, files, dialect.weight_bytes_per_token)


def _build(
    graph: GraphBuilder, name: str, recipe: Recipe, dialect: Dialect, progress: Progress
) -> Graph:
    build_decoder(recipe.spec, recipe.weights, dialect, progress)
    graph.save()
    return Graph("model.onnx", name, *dialect.contract())
