"""The few CUDA calls edgechat makes, each checked: memory, copies, one stream, graphs.

A thin cover over NVIDIA's ``cuda-bindings``; sizes are bytes, addresses are plain integers.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from edgechat.errors import EngineError
from edgechat.runtime.telemetry.sysfs import meminfo

ALIGNMENT = 256  # bytes: every tensor TensorRT is given starts at a multiple of it
NO_DRIVER = "cudaErrorInsufficientDriver"
REMEDIES = {
    NO_DRIVER: "there is no NVIDIA driver, or it is older than cuda-bindings; update the driver "
    "or JetPack, or install the cuda-bindings of its CUDA version (edgechat[jetpack6] for CUDA 12, "
    "edgechat[jetpack7] for CUDA 13; cuda-bindings==12.8.0 takes every driver of CUDA 12)",
    "cudaErrorNoDevice": "no NVIDIA GPU is visible; check nvidia-smi, and that the container was "
    "started with the GPU (--runtime nvidia)",
    "cudaErrorMemoryAllocation": "the GPU is out of memory; choose a smaller window or model, or "
    "end other programs",
}


def load_runtime() -> Any:
    """The module ``cuda.bindings.runtime``; EngineError where it is not installed."""
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise EngineError(
            f"cuda-bindings cannot be loaded ({error}); pip install 'edgechat[jetpack6]' on "
            "JetPack 6 or with CUDA 12, 'edgechat[jetpack7]' with CUDA 13."
        ) from None


@dataclass(frozen=True)
class Device:
    """A GPU: its name, compute capability (major, minor), bytes of memory, and whether that is
    the system's own (as on a Jetson)."""

    name: str
    compute_capability: tuple[int, int]
    memory: int
    integrated: bool


class Cuda:
    """One GPU and one stream on it; EngineError, with the remedy, when there is none.

    Everything allocated here is freed by ``close`` at the latest.
    """

    def __init__(self) -> None:
        self._api = load_runtime()
        self._memory: list[tuple[str, Any]] = []  # what to free, and by which call
        (count,) = self._call("cudaGetDeviceCount")
        if count < 1:
            raise EngineError(f"CUDA finds no GPU: {REMEDIES['cudaErrorNoDevice']}.")
        self._call("cudaSetDevice", 0)
        flags = self._api.cudaStreamNonBlocking
        (stream,) = self._call("cudaStreamCreateWithFlags", flags)
        self.stream = int(stream)

    @property
    def device(self) -> Device:
        (found,) = self._call("cudaGetDeviceProperties", 0)
        name = found.name.decode() if isinstance(found.name, bytes) else str(found.name)
        capability = (int(found.major), int(found.minor))
        return Device(name, capability, int(found.totalGlobalMem), bool(found.integrated))

    @property
    def free_memory(self) -> int:
        """Bytes of device memory that can be allocated now."""
        free, _ = self._call("cudaMemGetInfo")
        if self.device.integrated:  # CUDA leaves out the file cache, which the system gives up
            free = max(free, meminfo().get("MemAvailable", 0))
        return int(free)

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes of device memory, all zero."""
        free = self.free_memory
        if size > free:
            raise EngineError(
                f"{size >> 20:,} MiB of GPU memory are needed but {free >> 20:,} MiB are free; "
                "choose a smaller window or model, or end other programs."
            )
        (address,) = self._call("cudaMalloc", max(size, 1))
        self._memory.append(("cudaFree", address))
        self._call("cudaMemsetAsync", address, 0, size, self.stream)
        return int(address)

    def host(self, shape: tuple[int, ...], dtype: DTypeLike) -> HostArray:
        """An array that the CPU and the GPU both reach: pinned and mapped, copied by nobody."""
        kind = np.dtype(dtype)
        size = max(int(np.prod(shape)) * kind.itemsize, 1)
        (address,) = self._call("cudaHostAlloc", size, self._api.cudaHostAllocMapped)
        self._memory.append(("cudaFreeHost", address))
        (mapped,) = self._call("cudaHostGetDevicePointer", address, 0)
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(address)))
        array = raw[: int(np.prod(shape)) * kind.itemsize].view(kind).reshape(shape)
        array[...] = 0
        return HostArray(array, int(mapped), int(address))

    def copy(self, target: Box, source: Box) -> None:
        """Enqueue a copy between two boxes of the same extent, on the device or the host."""
        if target.extent != source.extent:
            raise ValueError("the boxes differ in extent")
        if not all(source.extent):
            return
        api = self._api
        task = api.cudaMemcpy3DParms()
        task.dstPtr, task.srcPtr = self._pitched(target), self._pitched(source)
        task.extent = api.make_cudaExtent(*source.extent)
        task.kind = api.cudaMemcpyKind.cudaMemcpyDefault
        self._call("cudaMemcpy3DAsync", task, self.stream)

    def synchronize(self) -> None:
        """Wait until everything enqueued is done."""
        self._call("cudaStreamSynchronize", self.stream)

    @contextmanager
    def captured(self) -> Iterator[Graph]:
        """What the body enqueues is not run but recorded; afterwards the graph can be launched."""
        graph = Graph(self)
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)
        try:
            yield graph
        except BaseException:
            _, recorded = self._api.cudaStreamEndCapture(self.stream)
            if recorded is not None:
                self._release("cudaGraphDestroy", recorded)
            raise  # the first error is the one to tell
        (recorded,) = self._call("cudaStreamEndCapture", self.stream)
        try:
            (graph.executable,) = self._call("cudaGraphInstantiate", recorded, 0)
        finally:
            self._call("cudaGraphDestroy", recorded)

    def close(self) -> None:
        """Wait for the stream, then free all memory and the stream itself."""
        if not self.stream:
            return
        self._api.cudaStreamSynchronize(self.stream)  # a failed step must not keep the memory
        for name, address in self._memory:
            self._release(name, address)
        self._memory.clear()
        self._release("cudaStreamDestroy", self.stream)
        self.stream = 0

    def _pitched(self, box: Box) -> Any:
        pointer = self._api.cudaPitchedPtr()
        pointer.ptr, pointer.pitch = box.address, box.pitch
        pointer.xsize, pointer.ysize = box.pitch, box.lines
        return pointer

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        try:
            status, *results = getattr(self._api, name)(*arguments)
        except RuntimeError as error:  # as cuda-bindings 12.8 tells of a missing libcuda
            raise EngineError(f"CUDA failed in {name} ({error}): {REMEDIES[NO_DRIVER]}.") from None
        if status == self._api.cudaError_t.cudaSuccess:
            return tuple(results)
        code = getattr(status, "name", str(status))
        cause = REMEDIES.get(code)
        if cause is None:
            cause = "restart the program; if it comes again, reboot and look at dmesg"
        raise EngineError(f"CUDA failed in {name} ({code}): {cause}.")

    def _release(self, name: str, handle: Any) -> None:
        """Free without complaint: after a failed step every call fails with that step's error."""
        getattr(self._api, name)(handle)


class Graph:
    """Recorded work, launched with one call."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.executable: Any = None

    def launch(self) -> None:
        self._cuda._call("cudaGraphLaunch", self.executable, self._cuda.stream)

    def close(self) -> None:
        if self.executable is not None:
            self._cuda._release("cudaGraphExecDestroy", self.executable)
            self.executable = None


@dataclass(frozen=True)
class HostArray:
    """Pinned memory: ``array`` for the CPU, ``mapped`` its address for kernels, ``address`` for
    copies."""

    array: NDArray[Any]
    mapped: int
    address: int


@dataclass(frozen=True)
class Box:
    """A part of memory in three dimensions, as cudaMemcpy3D sees it.

    From ``address`` on, lines of ``extent[0]`` bytes lie ``pitch`` bytes apart; ``extent[1]`` of
    them make a plane, and the next of the ``extent[2]`` planes starts ``lines`` lines later.
    """

    address: int
    pitch: int
    lines: int
    extent: tuple[int, int, int]
