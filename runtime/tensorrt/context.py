"""Deserialised engines and their execution contexts, every answer of TensorRT's checked."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorrt as trt

from edgechat.bundle import TensorInfo
from edgechat.errors import EngineError
from edgechat.runtime.cuda import Cuda, Graph
from edgechat.runtime.tensorrt.api import complaint, make_logger

TYPES = {"float32": "FLOAT", "float16": "HALF", "int64": "INT64"}  # as TensorRT calls them


class LoadedEngine:
    """One engine file in the GPU's memory."""

    def __init__(self, path: Path) -> None:
        self.logger = make_logger(trt)
        self._runtime = trt.Runtime(self.logger)
        try:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                engine = self._runtime.deserialize_cuda_engine(content)
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} cannot be read ({error}); run edgechat build.") from None
        if engine is None:
            raise EngineError(
                f"TensorRT does not load {path} ({complaint(self.logger)}); run edgechat build "
                "--rebuild."
            )
        self.engine: trt.ICudaEngine = engine

    @property
    def scratch(self) -> int:
        """Bytes of device memory a context needs while it runs."""
        return int(self.engine.device_memory_size_v2)

    def check(self, tensors: Sequence[TensorInfo], layers: int) -> None:
        """EngineError unless the engine has exactly these inputs and outputs, of their types and
        fixed dimensions: memory is measured by them."""
        engine = self.engine
        found = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        promised = {name: info for info in tensors for name in info.names(layers)}
        odd = set(found).symmetric_difference(promised)
        for name in promised.keys() - odd:
            info, dims = promised[name], engine.get_tensor_shape(name)
            shape = [dims[i] for i in range(len(dims))]
            same = engine.get_tensor_dtype(name).name == TYPES.get(info.dtype)
            same = same and len(shape) == len(info.shape)
            pairs = zip(shape, info.shape, strict=False)
            if not same or any(-1 != a != b for a, b in pairs if not isinstance(b, str)):
                odd.add(name)
        if odd:
            raise EngineError(
                f"the engine does not keep the manifest's contract at {min(odd)!r}; run edgechat "
                "build --rebuild."
            )


class Context:
    """Runs an engine with one optimisation profile, in ``scratch`` memory that others use too:
    on one stream they never overlap."""

    def __init__(
        self, cuda: Cuda, loaded: LoadedEngine, profile: int, scratch: tuple[int, int]
    ) -> None:
        self._cuda, self._loaded = cuda, loaded
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = loaded.engine.create_execution_context(strategy)
        if context is None:
            raise self._failed("make a context")
        self._context = context
        context.set_device_memory(*scratch)
        try:
            context.set_optimization_profile_async(profile, cuda.stream)
        except RuntimeError:  # the only call of TensorRT's here that raises
            raise self._failed("take its profile") from None

    def bind(self, shapes: Mapping[str, Sequence[int]], addresses: Mapping[str, int]) -> None:
        """Give inputs their ``shapes`` and all tensors their ``addresses``."""
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, tuple(shape)):
                raise self._failed(f"take {name} {list(shape)}")
        for name, address in addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise self._failed(f"bind {name}")

    def enqueue(self) -> None:
        """Run once, when what was enqueued before is done."""
        if not self._context.execute_async_v3(self._cuda.stream):
            raise self._failed("run a step")

    def record(self) -> Graph:
        """A graph of what ``enqueue`` does; it must have run with these shapes before."""
        with self._cuda.captured() as graph:
            self.enqueue()
        return graph

    def _failed(self, what: str) -> EngineError:
        reason = complaint(self._loaded.logger)
        self._loaded.logger.errors.clear()  # the next failure has a cause of its own
        return EngineError(
            f"TensorRT could not {what} ({reason}); run edgechat build --rebuild, or export the "
            "bundle again."
        )


def shapes_of(
    tensors: Iterable[TensorInfo], layers: int, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a contract, its symbolic dimensions taken from ``sizes``."""

    def size(dimension: Any) -> int:
        return sizes[dimension] if isinstance(dimension, str) else int(dimension)

    return {
        name: tuple(size(d) for d in info.shape) for info in tensors for name in info.names(layers)
    }
