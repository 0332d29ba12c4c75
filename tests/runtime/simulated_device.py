"""Stands in for ``cuda.bindings.runtime`` and ``tensorrt`` on a machine without a GPU.

"Device" memory is host memory that no one may leave; engines are ONNX graphs that ONNX Runtime's
CPU runs on the very addresses they were bound to. Nothing runs when it is enqueued: a stream is a
list that is worked off when somebody waits for it, so what the CPU touches too early goes wrong.
"""

from __future__ import annotations

import ctypes
import enum
import json
import types
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

MAGIC, END = b"simulated engine\n", b"\nend"
TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
}
Work = Callable[[], None]


class Status(enum.Enum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100
    cudaErrorLaunchFailure = 719


OK = Status.cudaSuccess


class SimulatedCuda(types.ModuleType):
    """The functions of cuda-bindings that edgechat calls; ``failing`` makes one of them fail."""

    cudaError_t = Status
    cudaStreamNonBlocking = 1
    cudaHostAllocMapped = 2
    cudaStreamCaptureMode = types.SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)
    cudaMemcpyKind = types.SimpleNamespace(cudaMemcpyDefault=4)

    def __init__(self, memory: int = 1 << 30) -> None:
        super().__init__("cuda.bindings.runtime")
        self.name, self.capability, self.memory = b"Orin", (8, 7), memory
        self.integrated = 0  # else free memory would be this machine's
        self.devices = 1
        self.blocks: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.streams: dict[int, list[Work]] = {}
        self.recording: dict[int, list[Work]] = {}
        self.graphs: dict[int, list[Work]] = {}
        self.calls: Counter[str] = Counter()
        self.failing: dict[str, Status] = {}
        self._next = 1 << 50

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("cuda") and name[4:5].isupper() and callable(found):
            if name in ("cudaError_t", "cudaMemcpy3DParms", "cudaPitchedPtr"):
                return found
            self.calls[name] += 1
            status = self.failing.get(name)
            if status is not None:
                return lambda *_: (status, None, None)
        return found

    @property
    def used(self) -> int:
        return sum(self.sizes.values())

    def _new_handle(self) -> int:
        self._next += 16
        return self._next

    def _block(self, size: int) -> int:
        block = (ctypes.c_uint8 * (size + 256))()
        address = -(-ctypes.addressof(block) // 256) * 256
        ctypes.memset(address, 0xFF, size)  # NaN, so that what was never written shows
        self.blocks[address], self.sizes[address] = block, size
        return address

    def check(self, address: int, size: int) -> None:
        """AssertionError unless these bytes lie in one allocation."""
        assert any(a <= address and address + size <= a + n for a, n in self.sizes.items()), (
            "outside of all memory"
        )

    def enqueue(self, stream: int, work: Work) -> None:
        (self.recording.get(stream) if stream in self.recording else self.streams[stream]).append(
            work
        )

    def cudaGetDeviceCount(self) -> tuple[Any, ...]:
        return OK, self.devices

    def cudaSetDevice(self, device: int) -> tuple[Any, ...]:
        return (OK,)

    def cudaGetDeviceProperties(self, device: int) -> tuple[Any, ...]:
        major, minor = self.capability
        return OK, types.SimpleNamespace(
            name=self.name,
            major=major,
            minor=minor,
            totalGlobalMem=self.memory,
            integrated=self.integrated,
        )

    def cudaMemGetInfo(self) -> tuple[Any, ...]:
        return OK, self.memory - self.used, self.memory

    def cudaMalloc(self, size: int) -> tuple[Any, ...]:
        assert not self.recording
        if self.used + size > self.memory:
            return Status.cudaErrorMemoryAllocation, None
        return OK, self._block(size)

    def cudaFree(self, address: int) -> tuple[Any, ...]:
        assert not self.recording
        del self.blocks[address], self.sizes[address]
        return (OK,)

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        return OK, self._block(size)

    def cudaHostGetDevicePointer(self, address: int, flags: int) -> tuple[Any, ...]:
        return OK, address

    def cudaFreeHost(self, address: int) -> tuple[Any, ...]:
        return self.cudaFree(address)

    def cudaMemsetAsync(self, address: int, value: int, size: int, stream: int) -> tuple[Any, ...]:
        self.check(address, size)
        self.enqueue(stream, lambda: ctypes.memset(address, value, size) and None)
        return (OK,)

    def cudaMemcpy3DParms(self) -> Any:
        return types.SimpleNamespace()

    def cudaPitchedPtr(self) -> Any:
        return types.SimpleNamespace()

    def make_cudaExtent(self, width: int, height: int, depth: int) -> Any:
        return width, height, depth

    def cudaMemcpy3DAsync(self, task: Any, stream: int) -> tuple[Any, ...]:
        (width, height, depth), to, of = task.extent, task.dstPtr, task.srcPtr
        assert width <= min(to.pitch, of.pitch)
        assert height <= min(to.ysize, of.ysize)
        lines = [(plane, line) for plane in range(depth) for line in range(height)]
        pairs = [
            tuple(p.ptr + (plane * p.ysize + line) * p.pitch for p in (to, of))
            for plane, line in lines
        ]

        def work() -> None:
            for target, source in pairs:
                self.check(target, width)
                self.check(source, width)
                ctypes.memmove(target, source, width)

        self.enqueue(stream, work)
        return (OK,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, ...]:
        stream = self._new_handle()
        self.streams[stream] = []
        return OK, stream

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        assert stream not in self.recording
        queue = self.streams[stream]
        while queue:
            queue.pop(0)()
        return (OK,)

    def cudaStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        del self.streams[stream]
        return (OK,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[Any, ...]:
        self.recording[stream] = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        graph = self._new_handle()
        self.graphs[graph] = self.recording.pop(stream)
        return OK, graph

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        executable = self._new_handle()
        self.graphs[executable] = list(self.graphs[graph])
        return OK, executable

    def cudaGraphDestroy(self, graph: int) -> tuple[Any, ...]:
        del self.graphs[graph]
        return (OK,)

    cudaGraphExecDestroy = cudaGraphDestroy

    def cudaGraphLaunch(self, executable: int, stream: int) -> tuple[Any, ...]:
        for work in self.graphs[executable]:
            self.enqueue(stream, work)
        return (OK,)


class SimulatedTensorRt(types.ModuleType):
    """As much of the module ``tensorrt`` as edgechat uses."""

    def __init__(self, cuda: SimulatedCuda, version: str = "10.16.1.11") -> None:
        super().__init__("tensorrt")
        self.__version__ = version
        self.cuda = cuda
        self.NetworkDefinitionCreationFlag = types.SimpleNamespace(STRONGLY_TYPED=1)
        self.MemoryPoolType = types.SimpleNamespace(WORKSPACE=0)
        self.LayerType = types.SimpleNamespace()
        self.ExecutionContextAllocationStrategy = types.SimpleNamespace(USER_MANAGED=2)
        self.Dims = tuple
        self.builds = 0
        self.recordable = True  # whether a stream that records takes steps
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()  # engines and contexts
        self.Builder = lambda logger: _Builder(self, logger)
        self.OnnxParser = _Parser
        self.Runtime = lambda logger: _Runtime(self, logger)

    class ILogger:
        ERROR, INTERNAL_ERROR, WARNING = 1, 0, 2

    class IProgressMonitor:
        pass


class _Builder:
    def __init__(self, api: SimulatedTensorRt, logger: Any) -> None:
        self._api, self._logger = api, logger

    def create_network(self, flags: int) -> Any:
        return types.SimpleNamespace(num_layers=0)

    def create_builder_config(self) -> Any:
        return _Config()

    def create_optimization_profile(self) -> Any:
        return _Profile()

    def build_serialized_network(self, network: Any, config: Any) -> bytes | None:
        self._api.builds += 1
        sizes = {x.name: x.shape for x in network.inputs}
        for name, bounds in (pair for x in config.profiles for pair in x.ranges.items()):
            fits = len(bounds[0]) == len(sizes[name]) and all(
                isinstance(size, str) or size == low == high
                for size, low, high in zip(sizes[name], *bounds, strict=True)
            )
            if not fits:
                self._logger.log(1, f"the profile does not fit {name}")
                return None
        monitor = config.progress_monitor
        monitor.phase_start("Building engine", None, 2)
        if not all(monitor.step_complete("Building engine", step) for step in range(2)):
            return None
        monitor.phase_finish("Building engine")
        ranges = [profile.ranges for profile in config.profiles]
        facts = {"path": network.path, "ranges": ranges, "version": self._api.__version__}
        return MAGIC + json.dumps(facts).encode() + END


class _Config:
    def __init__(self) -> None:
        self.profiles: list[_Profile] = []
        self.limits: dict[int, int] = {}
        self.progress_monitor: Any = None

    def set_memory_pool_limit(self, pool: int, size: int) -> None:
        self.limits[pool] = size

    def create_timing_cache(self, content: bytes) -> Any:
        if content == b"damaged":
            return None
        return types.SimpleNamespace(content=content, serialize=lambda: b"timings")

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        return cache.content in (b"", b"timings")

    def add_optimization_profile(self, profile: _Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class _Profile:
    def __init__(self) -> None:
        self.ranges: dict[str, Any] = {}

    def set_shape(self, name: str, least: Any, usual: Any, most: Any) -> None:
        self.ranges[name] = least, most


class _Parser:
    num_errors = 0

    def __init__(self, network: Any, logger: Any) -> None:
        self._network = network

    def parse_from_file(self, path: str) -> bool:
        if not Path(path).is_file():
            return False
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session, network = ort.InferenceSession(path, options), self._network
        network.path, network.inputs, outputs = path, session.get_inputs(), session.get_outputs()
        network.num_inputs, network.get_input = len(network.inputs), network.inputs.__getitem__
        network.num_outputs, network.get_output = len(outputs), outputs.__getitem__
        return True


class _Runtime:
    def __init__(self, api: SimulatedTensorRt, logger: Any) -> None:
        self._api, self._logger = api, logger

    def deserialize_cuda_engine(self, content: Any) -> _Engine | None:
        content = bytes(content)
        facts = {}
        if content.startswith(MAGIC) and content.endswith(END):
            facts = json.loads(content[len(MAGIC) : -len(END)])
        if facts.get("version") != self._api.__version__:
            self._logger.log(SimulatedTensorRt.ILogger.ERROR, "magicTag does not match\nmore")
            return None
        return _Engine(self._api, facts, self._logger)


class _Engine:
    device_memory_size_v2 = 4096

    def __init__(self, api: SimulatedTensorRt, facts: Any, logger: Any) -> None:
        self.api, self.cuda, self.ranges, self.logger = api, api.cuda, facts["ranges"], logger
        api.alive.add(self)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = ort.InferenceSession(facts["path"], options)
        self.inputs = {x.name: TYPES[x.type] for x in self.session.get_inputs()}
        self.outputs = [x.name for x in self.session.get_outputs()]
        both = (*self.session.get_inputs(), *self.session.get_outputs())
        self.tensors = {x.name: x for x in both}
        self.num_io_tensors = len(self.inputs) + len(self.outputs)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_dtype(self, name: str) -> Any:
        names = {"float": "FLOAT", "float16": "HALF", "int64": "INT64"}
        return types.SimpleNamespace(name=names[self.tensors[name].type[7:-1]])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(-1 if isinstance(n, str) else n for n in self.tensors[name].shape)

    def create_execution_context(self, strategy: Any) -> _Context:
        return _Context(self)


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._profile = 0
        self._updated = False  # by a run since shapes or the profile changed
        engine.api.alive.add(self)

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= self._engine.device_memory_size_v2
        self._engine.cuda.check(address, size)

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        if profile >= len(self._engine.ranges):
            raise RuntimeError("Error in set optimization profile async.")
        self._profile, self._updated = profile, False
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, high = self._engine.ranges[self._profile][name]
        inside = len(shape) == len(low) and all(
            a <= n <= b for a, n, b in zip(low, shape, high, strict=True)
        )
        self._shapes[name], self._updated = shape, False
        if not inside:
            self._engine.logger.log(1, f"{name}: {shape} is outside of the profile")
        return inside

    def set_tensor_address(self, name: str, address: int) -> bool:
        known = name in self._engine.inputs or name in self._engine.outputs
        assert address % 256 == 0  # as TensorRT's documentation of it demands
        self._addresses[name] = address
        return known

    def execute_async_v3(self, stream: int) -> bool:
        if stream in self._engine.cuda.recording:
            assert self._updated  # else it does things that cannot be recorded
            if not self._engine.api.recordable:
                self._engine.logger.log(1, "operation not permitted when stream is capturing")
                return False
        self._updated = True
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        self._engine.cuda.enqueue(stream, lambda: self._work(shapes, addresses))
        return True

    def _work(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        engine = self._engine
        feeds = {
            name: self._view(addresses[name], shapes[name], kind)
            for name, kind in engine.inputs.items()
        }
        results = engine.session.run(engine.outputs, feeds)
        for name, result in zip(engine.outputs, results, strict=True):
            self._view(addresses[name], result.shape, result.dtype)[...] = result

    def _view(self, address: int, shape: tuple[int, ...], kind: Any) -> Any:
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        assert address != 0
        self._engine.cuda.check(address, size)
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * max(size, 1)).from_address(address))
        return raw[:size].view(kind).reshape(shape)
