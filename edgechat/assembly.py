"""A KV cache and its archive, put together as settings ask for."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from edgechat.bundle import Bundle, Manifest
from edgechat.errors import EngineError
from edgechat.paths import cache_folder
from edgechat.runtime.archive import BLOCK, Archive
from edgechat.runtime.engine import Engine, check_capacity
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.memory import Memory
from edgechat.runtime.text import TextCodec
from edgechat.settings import Settings


def needs_importance(settings: Settings) -> bool:
    """Whether the engine has to give signals."""
    return settings.make_policy().needs_importance or settings.recalls


def make_engine(
    bundle: Bundle,
    capacity: int,
    threads: int | None = None,
    importance: bool = False,
    allow_fallback: bool = False,
) -> Engine:
    """The engine that speaks the bundle's dialect, with one row of ``capacity`` slots.

    TensorRT's is built first where this machine has none yet, which takes minutes and is told by
    a warning of the logger ``edgechat``. Raises EngineError when the backend is missing; with
    ``allow_fallback`` a bundle for CUDA then runs on the CPU, which is told in the same way.
    """
    dialect, logger = bundle.manifest.graph.dialect, logging.getLogger("edgechat")
    if dialect.startswith("tensorrt"):
        from edgechat.runtime.tensorrt.engines import ensure_engines

        engines = ensure_engines(bundle, say=logger.warning)
        from edgechat.runtime.tensorrt_engine import TensorRtEngine

        return TensorRtEngine(bundle, engines, capacity, importance)
    extra = "cuda" if dialect == "ort_cuda" else "cpu"
    try:
        from edgechat.runtime.growing_engine import GrowingEngine
        from edgechat.runtime.onnx_cuda_engine import OnnxCudaEngine, check_precision
        from edgechat.runtime.onnx_engine import OnnxEngine
    except ImportError as error:
        raise EngineError(
            f"ONNX Runtime cannot be loaded ({error}); pip install 'edgechat[{extra}]'."
        ) from None
    if dialect == "optimum":
        return GrowingEngine(bundle, capacity, threads, importance)
    if dialect == "ort_cuda":
        check_capacity(bundle.manifest, capacity, importance)
        try:
            check_precision(bundle.manifest)
            return OnnxCudaEngine(bundle, capacity, importance)
        except EngineError as error:
            if not allow_fallback:
                raise EngineError(
                    f"{str(error).rstrip('.')}; or run it on the CPU, slowly, with "
                    "--allow-fallback (in Python: allow_fallback=True)."
                ) from None
            logger.warning("note: running on the CPU, slowly, and not on CUDA: %s", error)
    return OnnxEngine(bundle, capacity, threads=threads, importance=importance)


def make_cache(bundle: Bundle, settings: Settings, engine: Engine, codec: TextCodec) -> KVCache:
    """An empty cache over ``engine``, with an archive of its own if ``settings`` recall."""
    memory = Memory(make_archive(bundle, settings)) if settings.recalls else None
    marks, ends = codec.marks, codec.sentence_ends
    return KVCache(engine, settings.make_policy(), memory, marks, ends, settings.prefill_chunk)


def make_archive(bundle: Bundle, settings: Settings) -> Archive:
    """The archive ``settings`` ask for, for the KV cache of ``bundle``."""
    folder = None if settings.archive_folder is None else Path(settings.archive_folder)
    if folder is None:  # the system's temporary folder may lie in memory
        own = cache_folder() / "archive"
        with suppress(OSError):
            own.mkdir(parents=True, exist_ok=True)
            folder = own
    shape, dtype, hidden_size, limit = archive_form(bundle.manifest, settings)
    return Archive(shape, dtype, hidden_size, folder, limit)


def archive_form(
    manifest: Manifest, settings: Settings
) -> tuple[tuple[int, ...], np.dtype[Any], int, int]:
    """The archive's shape, dtype, hidden size and limit in bytes."""
    dims = manifest.dims
    shape = (dims.num_layers, 2, dims.num_kv_heads, BLOCK, dims.head_dim)
    limit = settings.archive_mib << 20
    return shape, np.dtype(manifest.kv_dtype), dims.hidden_size, limit
