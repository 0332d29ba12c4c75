"""Builds an ONNX graph whose weights stream to a data file as they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgechat.bundle import TensorInfo

ALIGNMENT = 4096  # bytes: lets runtimes map a tensor straight from the file
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}


class GraphBuilder:
    """Collects nodes and initializers; values are names (``str``).

    Large initializers go to ``data_path`` at once, so memory holds one tensor, not the model,
    and graphs may pass protobuf's 2 GB. Use as a context manager; ``save`` writes the graph.
    """

    def __init__(self, graph_path: Path, data_path: Path, opsets: Mapping[str, int]) -> None:
        self._graph_path, self._data_path = graph_path, data_path
        self._data = data_path.open("wb")
        self._opsets = dict(opsets)
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def __enter__(self) -> GraphBuilder:
        return self

    def __exit__(self, *exc: object) -> None:
        self._data.close()

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))

    def output(self, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))

    def declare(
        self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], layers: int
    ) -> None:
        """Give the graph the inputs and outputs of a contract."""
        for infos, add in ((inputs, self.input), (outputs, self.output)):
            for info in infos:
                for name in info.names(layers):
                    add(name, info.dtype, info.shape)

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: int | Sequence[str] = 1,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Append a node; returns its output name (or a list when there are several).

        ``outputs`` is a count or explicit names; "" in either list leaves a place empty.
        """
        self._count += 1
        label = f"{op}_{self._count}"
        if isinstance(outputs, int):
            outputs = [f"{label}.{i}" for i in range(outputs)]
        self._nodes.append(
            helper.make_node(op, list(inputs), list(outputs), label, domain=domain, **attributes)
        )
        return outputs[0] if len(outputs) == 1 else list(outputs)

    def cast(self, x: str, dtype: str, output: str | None = None) -> str:
        """``x`` as ``dtype``, such as float16; ``output`` names the result."""
        return str(self.node("Cast", [x], 1 if output is None else [output], to=TYPES[dtype]))

    def fresh(self, label: str, count: int) -> list[str]:
        """Unused value names, for nodes that leave some outputs empty."""
        self._count += 1
        return [f"{label}_{self._count}.{i}" for i in range(count)]

    def constant(self, value: NDArray[Any]) -> str:
        """A small initializer kept inside the graph file; equal ones are shared."""
        key = (value.dtype.name, value.tobytes(), value.shape)
        if key not in self._constants:
            name = f"const_{len(self._constants)}"
            self._initializers.append(onnx.numpy_helper.from_array(value, name))
            self._constants[key] = name
        return self._constants[key]

    def weight(self, name: str, value: NDArray[Any]) -> str:
        """An initializer stored in the data file."""
        value = np.ascontiguousarray(value)
        self._data.write(b"\0" * (-self._data.tell() % ALIGNMENT))
        offset = self._data.tell()
        self._data.write(value.data)
        self._external(name, value.dtype.name, value.shape, offset, value.nbytes)
        return name

    def save(self) -> None:
        graph = helper.make_graph(
            self._nodes, "edgechat", self._inputs, self._outputs, self._initializers
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        oldest = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=oldest)
        model.producer_name = "edgechat"
        self._data.flush()
        onnx.save(model, self._graph_path)

    def _external(
        self, name: str, dtype: str, shape: Sequence[int], offset: int, length: int
    ) -> None:
        tensor = TensorProto(
            name=name, dims=shape, data_type=TYPES[dtype], data_location=TensorProto.EXTERNAL
        )
        place = {"location": self._data_path.name, "offset": offset, "length": length}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._initializers.append(tensor)
