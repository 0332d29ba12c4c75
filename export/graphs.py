"""Writes the graphs of a bundle in the target's dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from edgechat.bundle import Graph
from edgechat.export.decoder import build_decoder
from edgechat.export.dialects.allow_list import check_graph
from edgechat.export.dialects.base import Dialect
from edgechat.export.dialects.compact import build_compact
from edgechat.export.dialects.cuda_kernels import check_cuda
from edgechat.export.dialects.ort import CAPACITY
from edgechat.export.dialects.ort_cpu import OrtCpu
from edgechat.export.dialects.ort_cuda import OrtCuda
from edgechat.export.dialects.tensorrt import TensorRt
from edgechat.export.dialects.tensorrt_10_3 import TensorRt103
from edgechat.export.dialects.tensorrt_10_15 import TensorRt1015
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.recipe import Recipe

GPU_DIALECTS: dict[str, type[TensorRt | OrtCuda]] = {
    "ort_cuda": OrtCuda,
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
    """Write the decoder, and for a GPU the compact graph, in the dialect ``name``.

    Raises UnsupportedModelError where the dialect's backend would not take them, or run parts on
    the CPU. On a GPU float32 is for comparing with the model on ONNX Runtime's CPU, and is not
    checked: none of the backends has float32 attention.
    """
    files = ["model.onnx", "model.data"]
    on_gpu = GPU_DIALECTS.get(name)
    dtype = "float32" if precision == "fp32" else "float16"
    opsets = on_gpu.opsets if on_gpu else OrtCpu.opsets
    with GraphBuilder(folder / files[0], folder / files[1], opsets) as graph:
        dialect: Dialect
        if on_gpu:
            int8 = precision.startswith("int8")
            dialect = on_gpu(graph, recipe.spec, dtype, int8, capacity, importance)
        else:
            blocks, scales = precision != "fp32", recipe.kv_scales
            dialect = OrtCpu(graph, recipe.spec, blocks, capacity, scales, importance)
        build_decoder(recipe.spec, recipe.weights, dialect, progress)
        graph.save()
    decoder, compact = Graph(files[0], name, *dialect.contract()), None
    if on_gpu:
        files += ["compact.onnx", "compact.data"]
        length = CAPACITY if on_gpu is OrtCuda else capacity
        with GraphBuilder(folder / files[2], folder / files[3], opsets) as graph:
            contract = build_compact(graph, recipe.spec, dtype, length, capacity)
            compact = Graph(files[2], name, *contract)
            graph.save()
        if precision != "fp32":
            for file in (decoder.file, compact.file):
                _check(onnx.load(folder / file, load_external_data=False), name)
    return Graphs(decoder, compact, files, dialect.weight_bytes_per_token)


def _check(model: Any, name: str) -> None:
    if name == "ort_cuda":
        check_cuda(model)
    else:
        check_graph(model, name)
