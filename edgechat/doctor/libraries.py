"""What the installed libraries can really do, each asked in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from edgechat.doctor.ask import ask


@dataclass(frozen=True)
class Library:
    """``version`` of what could be loaded, or ``error``: why not."""

    version: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Gpu:
    """Memory in bytes; ``integrated``: it is the system's own, as on a Jetson."""

    name: str
    compute_capability: str
    memory: int
    free_memory: int
    integrated: bool


@dataclass(frozen=True)
class Libraries:
    """``providers``: ONNX Runtime's, and why one does not compute (None: it does).

    ``driver`` has the newest CUDA the NVIDIA driver runs; ``cuda_runtime`` is that of
    cuda-bindings.
    """

    onnxruntime: Library
    onnxruntime_packages: tuple[str, ...]
    providers: dict[str, str | None]
    driver: Library
    cuda_bindings: Library
    cuda_runtime: str | None
    gpu: Gpu | None
    gpu_error: str | None
    cudnn: Library
    tensorrt: Library


def look_at_libraries(ask: Callable[..., dict[str, Any]] = ask) -> Libraries:
    """Asks two at a time: more would fight over memory on a small board."""
    with ThreadPoolExecutor(2) as pool:
        ort = pool.submit(ask, "onnxruntime")
        rest = {name: pool.submit(ask, name) for name in ("driver", "cuda", "cudnn", "tensorrt")}
        providers = {
            name: pool.submit(ask, "provider", name) for name in ort.result().get("providers", ())
        }
        facts = {name: future.result() for name, future in rest.items()}
        working = {name: future.result().get("error") for name, future in providers.items()}
    cuda = facts["cuda"]
    return Libraries(
        onnxruntime=_library(ort.result()),
        onnxruntime_packages=tuple(ort.result().get("packages", ())),
        providers=working,
        driver=_library(facts["driver"]),
        cuda_bindings=_library(cuda),
        cuda_runtime=cuda.get("runtime"),
        gpu=Gpu(**cuda["gpu"]) if "gpu" in cuda else None,
        gpu_error=cuda.get("gpu_error"),
        cudnn=_library(facts["cudnn"]),
        tensorrt=_library(facts["tensorrt"]),
    )


def _library(facts: dict[str, Any]) -> Library:
    return Library(facts.get("version"), facts.get("error"))
