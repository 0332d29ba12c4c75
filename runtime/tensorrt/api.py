"""Loads TensorRT, or TensorRT-RTX for building ahead of time; says in one sentence why not."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from edgechat.errors import EngineError

OLDEST = (10, 3)
# The second needs the first.
RTX_LIBRARIES = ("libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so")
HARMLESS = "driver version is insufficient"  # noted by a builder that needs no driver


def load_tensorrt() -> Any:
    """The module ``tensorrt``; EngineError where it is missing or too old."""
    remedy = (
        "on a Jetson it comes with JetPack (sudo apt install tensorrt): make the virtual "
        "environment with --system-site-packages; on a PC: pip install tensorrt; to run the model "
        "on a CPU, export it with --target cpu"
    )
    try:
        module = importlib.import_module("tensorrt")
    except (ImportError, OSError) as error:
        raise EngineError(f"TensorRT cannot be loaded ({error}); {remedy}.") from None
    if not hasattr(module, "Runtime"):  # an empty namespace, as type stubs leave one
        raise EngineError(f"the Python package 'tensorrt' found here is empty; {remedy}.")
    if version(module) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EngineError(
            f"TensorRT {module.__version__} is older than {oldest}; update JetPack to 6 or later."
        )
    return module


def load_rtx() -> Any:
    """The module ``tensorrt_rtx_bindings``; EngineError where the extra is not installed.

    The wheel with the bindings has no libraries and the one with the libraries is a plugin of
    ONNX Runtime's: they meet in this process.
    """
    found = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    if found is None or found.origin is None:
        raise EngineError(
            "TensorRT-RTX is not installed; pip install 'edgechat[rtx]' (on 64-bit x86 Linux)."
        )
    try:
        for name in RTX_LIBRARIES:
            (path,) = Path(found.origin).parent.glob(f"{name}.*.*")
            ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)
        return importlib.import_module("tensorrt_rtx_bindings")
    except (OSError, ValueError, ImportError) as error:
        raise EngineError(
            f"TensorRT-RTX cannot be loaded ({error}); install both parts of one release again: "
            "pip install --force-reinstall 'edgechat[rtx]'."
        ) from None


def version(module: Any) -> tuple[int, int]:
    """Major and minor release number."""
    major, minor, *_ = str(module.__version__).split(".")
    return int(major), int(minor)


def make_logger(module: Any) -> Any:
    """A logger that keeps what TensorRT calls errors in its list ``errors`` and prints nothing."""

    class Logger(module.ILogger):  # type: ignore[misc]  # a class of whichever module it is
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            serious = severity in (module.ILogger.ERROR, module.ILogger.INTERNAL_ERROR)
            if serious and HARMLESS not in message:
                self.errors.append(message)

    return Logger()


def complaint(logger: Any, errors: list[str] | None = None) -> str:
    """The first line of the first error TensorRT told, at most 300 characters."""
    told = errors or logger.errors
    return told[0].strip().splitlines()[0][:300] if told else "it gives no reason"
