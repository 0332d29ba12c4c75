"""Parses and builds a bundle's graphs ahead of time with TensorRT-RTX; needs no GPU.

A real NVIDIA parser and builder, but not JetPack's: it builds for other GPUs and takes graphs that
older versions refuse, see dialects/allow_list.py. Needs the ``rtx`` extra (64-bit x86 Linux).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgechat.bundle import Bundle, Graph
from edgechat.errors import EngineError

GPUS = ("SM86", "SM89", "SM120")
LIBRARIES = ("libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so")  # the second needs the first
MOST_TOKENS = 512  # of a prefill step
# How release 1.7 writes fused kernels down in an engine.
FUSED_ATTENTION = re.compile(rb"function=\{ name=_gem[mv]_mha")
FUSED_WEIGHT = re.compile(rb"runtime_fusion=\{ name=__myl_CastMulFc")
Range = tuple[int, int, int]  # smallest, likeliest and largest size of a dimension


@dataclass(frozen=True)
class Built:
    """A serialised engine, and what became of the network.

    ``cache_updates`` counts layers that write a cache in place; ``fused_attentions`` and
    ``fused_weights`` (products that read int8 weights with float inputs and expand nothing) count
    kernels, all profiles together.
    """

    engine: bytes
    cache_updates: int
    fused_attentions: int
    fused_weights: int


def load_rtx() -> Any:
    """The module ``tensorrt_rtx_bindings``; EngineError where the extra is not installed.

    The wheel with the bindings has no libraries and the one with the libraries is a plugin of
    ONNX Runtime's: they meet in this process.
    """
    found = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    if found is None or found.origin is None:
        raise EngineError("TensorRT-RTX is not installed; pip install 'edgechat[rtx]'.")
    try:
        for name in LIBRARIES:
            (path,) = Path(found.origin).parent.glob(f"{name}.*.*")
            ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)
        return importlib.import_module("tensorrt_rtx_bindings")
    except (OSError, ValueError, ImportError) as error:
        raise EngineError(
            f"TensorRT-RTX cannot be loaded ({error}); install both parts of one release again: "
            "pip install --force-reinstall 'edgechat[rtx]'."
        ) from None


def build_decoder_engine(bundle: Bundle, gpu: str) -> Built:
    """An engine of the decoder with two profiles: one token, and up to MOST_TOKENS."""
    most = min(MOST_TOKENS, bundle.manifest.max_capacity // 2)
    profiles = [
        _sizes(bundle, (1, 1, 1)),
        _sizes(bundle, (1, max(1, most // 4), most)),
    ]
    return build_engine(bundle, bundle.manifest.graph, profiles, gpu)


def build_compact_engine(bundle: Bundle, gpu: str) -> Built:
    """An engine of the compact graph, for any number of kept slots."""
    graph = bundle.manifest.compact
    if graph is None:
        raise EngineError(f"{bundle.folder} has no compact graph; export it with --target.")
    capacity = bundle.manifest.max_capacity
    profile = {"kept_slots": (1, max(1, capacity * 3 // 4), capacity)}
    return build_engine(bundle, graph, [profile], gpu)


def build_engine(
    bundle: Bundle, graph: Graph, profiles: Sequence[dict[str, Range]], gpu: str
) -> Built:
    """Parse ``graph`` and build it strongly typed for ``gpu``, one of GPUS.

    Each profile gives a range to every symbolic dimension of the contract. EngineError with
    TensorRT's first complaint.
    """
    trt = load_rtx()
    logger = _logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(bundle.path(graph.file))):
        errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise EngineError(_refused("parse", graph.file, errors or logger.errors))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, gpu), 0)
    for sizes in profiles:
        profile = builder.create_optimization_profile()
        for info in graph.inputs:
            shapes = [[_size(d, sizes, i) for d in info.shape] for i in range(3)]
            for name in info.names(bundle.manifest.dims.num_layers):
                profile.set_shape(name, *shapes)
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise EngineError(_refused("build", graph.file, logger.errors))
    kinds = [network.get_layer(i).type for i in range(network.num_layers)]
    engine = bytes(engine)
    updates = kinds.count(trt.LayerType.KV_CACHE_UPDATE)
    fused = (len(kernel.findall(engine)) for kernel in (FUSED_ATTENTION, FUSED_WEIGHT))
    return Built(engine, updates, *fused)


def _size(dimension: int | str, sizes: dict[str, Range], which: int) -> int:
    return sizes[dimension][which] if isinstance(dimension, str) else dimension


def _sizes(bundle: Bundle, tokens: Range) -> dict[str, Range]:
    """One row; surprisal is asked of all tokens but the first, logits of the last."""
    fewest, likeliest, most = (n - 1 for n in tokens)
    return {
        "batch": (1, 1, 1),
        "tokens": tokens,
        "targets": (fewest, likeliest, most),
        "output_positions": tokens if bundle.manifest.has_importance else (1, 1, 1),
    }


def _logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]  # the bindings carry no types
        """Keeps what TensorRT calls errors; there is no driver here, which it notes and is not
        one."""

        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            serious = severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
            if serious and "driver version is insufficient" not in message:
                self.errors.append(message)

    return Logger()


def _refused(verb: str, file: str, errors: list[str]) -> str:
    reason = errors[0].strip().splitlines()[0][:300] if errors else "it gives no reason"
    return f"TensorRT-RTX does not {verb} {file} ({reason}); export the bundle again."
