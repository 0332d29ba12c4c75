"""Parses and builds a bundle's graphs ahead of time with TensorRT-RTX: no GPU is needed.

A real NVIDIA parser and builder, and a second opinion only: it is not JetPack's TensorRT, builds
for other GPUs and takes more than old versions do (see dialects/allow_list.py). Needs the ``rtx``
extra.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgechat.errors import EngineError

LIBRARIES = ("libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so")  # the second needs the first
GPUS = ("SM86", "SM89", "SM120")
Shapes = Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Built:
    """``engine`` is serialised; ``cache_updates`` counts layers that write the cache in place."""

    engine: bytes
    layers: int
    cache_updates: int


def load_rtx() -> Any:
    """The module ``tensorrt_rtx_bindings``; EngineError where the extra is not installed.

    The bindings come without the libraries, which another wheel carries and which must be in
    the process first.
    """
    found = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    if found is None or found.origin is None:
        raise EngineError("TensorRT-RTX is not installed; pip install 'edgechat[rtx]'.")
    folder = Path(found.origin).parent
    try:
        for name in LIBRARIES:
            (path,) = folder.glob(f"{name}.*.*.*")
            ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)
        return importlib.import_module("tensorrt_rtx_bindings")
    except (OSError, ValueError, ImportError) as error:
        raise EngineError(
            f"TensorRT-RTX cannot be loaded ({error}); pip install --force-reinstall "
            "'edgechat[rtx]' on 64-bit x86 Linux."
        ) from None
