"""Probes that load other people's libraries. Each runs in a process of its own (``ask``), where it
may hang or crash without taking the doctor along, and prints one JSON object."""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from edgechat.doctor.tiny_graph import tiny_model
from edgechat.errors import EngineError

REMOTE = ("AzureExecutionProvider",)  # computes nothing here
Facts = dict[str, Any]


def onnxruntime() -> Facts:
    """Version, and the providers this build has, which says nothing about their libraries."""
    import onnxruntime as ort

    providers = [name for name in ort.get_available_providers() if name not in REMOTE]
    names = ("onnxruntime", "onnxruntime-gpu")
    return {
        "version": ort.__version__,
        "providers": providers,
        "packages": [name for name in names if _is_installed(name)],
    }


def provider(name: str) -> Facts:
    """Whether ``name`` computes: loading it shows missing libraries, a node a missing kernel."""
    import numpy as np
    import onnxruntime as ort

    from edgechat.runtime.onnx_session import CUDA, preload_libraries

    if name == CUDA.name:
        preload_libraries()
    session = ort.InferenceSession(tiny_model(), providers=[name])
    session.disable_fallback()
    if session.get_providers()[0] != name:
        return {"fell_back": True}
    (y,) = session.run(None, {"x": np.array([21], dtype=np.float32)})
    return {} if y[0] == 42 else {"error": f"computed 21 + 21 = {y[0]}"}


def driver() -> Facts:
    """The newest CUDA the NVIDIA driver can run, asked of the driver itself."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        if "No such file" in str(error):
            return {"error": f"there is no NVIDIA driver ({name} is missing)"}
        return {"error": f"the NVIDIA driver cannot be loaded ({error})"}
    version = ctypes.c_int()
    status = library.cuDriverGetVersion(ctypes.byref(version))
    if status or not version.value:
        return {"error": f"the NVIDIA driver does not answer (CUDA error {status})"}
    return {"version": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def cuda() -> Facts:
    """cuda-bindings, its CUDA version and the GPU."""
    from edgechat.runtime.cuda import Cuda, load_runtime

    runtime = load_runtime()
    facts: Facts = {"version": str(importlib.import_module("cuda.bindings").__version__)}
    status, number = runtime.cudaRuntimeGetVersion()
    if not int(status):
        facts["runtime"] = f"{number // 1000}.{number % 1000 // 10}"
    try:
        cuda = Cuda()
        device = cuda.device
        facts["gpu"] = {
            "name": device.name,
            "compute_capability": ".".join(map(str, device.compute_capability)),
            "memory": device.memory,
            "free_memory": cuda.free_memory,
            "integrated": device.integrated,
        }
        cuda.close()
    except EngineError as error:
        facts["gpu_error"] = str(error)
    return facts


def cudnn() -> Facts:
    for name in ("libcudnn.so.9", "libcudnn.so.8", "cudnn64_9.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.cudnnGetVersion.restype = ctypes.c_size_t
        version = library.cudnnGetVersion()  # 9 * 10000 + minor * 100 + patch since 9
        thousands = 10000 if version >= 90000 else 1000
        return {"version": f"{version // thousands}.{version % thousands // 100}.{version % 100}"}
    for name in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        if _is_installed(name):
            return {"version": f"{metadata.version(name)} (package {name})"}
    return {"error": "not found"}


def tensorrt() -> Facts:
    from edgechat.runtime.tensorrt.api import load_tensorrt

    return {"version": str(load_tensorrt().__version__)}


def engine(folder: str) -> Facts:
    """Whether the bundle in ``folder`` has an engine for this TensorRT and GPU."""
    from edgechat.bundle import load_bundle
    from edgechat.runtime.cuda import Cuda
    from edgechat.runtime.tensorrt.api import load_tensorrt
    from edgechat.runtime.tensorrt.engines import find_engines

    cuda = Cuda()
    found = find_engines(load_bundle(folder), load_tensorrt(), cuda.device)
    cuda.close()
    return {"why_build": found} if isinstance(found, str) else {}


PROBES: dict[str, Callable[..., Facts]] = {
    probe.__name__: probe
    for probe in (onnxruntime, provider, driver, cuda, cudnn, tensorrt, engine)
}


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def main() -> None:
    name, *arguments = sys.argv[1:]
    try:
        facts = PROBES[name](*arguments)
    except Exception as error:  # whatever a library raises is the answer to the question
        reason = str(error).strip() or type(error).__name__
        facts = {"error": reason.splitlines()[0][:500]}
    print(json.dumps(facts), flush=True)
