"""Weights in a graph for TensorRT, and products with them.

Weights lie [out, in] in front of a Transpose: of those stored [in, out] an engine keeps one copy
for each optimisation profile (SmolLM2 in int8: 346 MB for two profiles against 243).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgechat.export.dialects.floats import Floats
from edgechat.export.graph import GraphBuilder
from edgechat.export.spec import AnyLinear, Array, Linear, StaticInt8Linear


@dataclass(frozen=True)
class Stored:
    """Weights in the graph: ``rows`` names a float tensor [out, in].

    ``factors`` [out] belong behind the product; ``input_scale`` rounds what is multiplied.
    """

    rows: str
    bias: Array | None = None
    factors: Array | None = None
    input_scale: float | None = None


class Products(Floats):
    """Spells products in ``dtype``, float16 or float32; counts the bytes of weights they read."""

    def __init__(self, graph: GraphBuilder, dtype: str) -> None:
        self._graph, self._dtype, self._read_bytes = graph, np.dtype(dtype), 0

    def _store(self, linear: AnyLinear, name: str) -> Stored:
        graph = self._graph
        if not isinstance(linear, StaticInt8Linear):
            if not isinstance(linear, Linear):
                raise TypeError(f"{name}: TensorRT takes int8 with scales known at export only")
            self._read_bytes += linear.weight.size * self._dtype.itemsize
            return Stored(graph.weight(name, linear.weight.astype(self._dtype)), linear.bias)
        self._read_bytes += linear.codes.nbytes
        codes = graph.weight(name, linear.codes)
        if linear.input_scale is not None:
            rows = self._dequantize(codes, linear.scales)
            return Stored(rows, linear.bias, input_scale=linear.input_scale)
        # With a scale a row TensorRT expands the whole weight at every step of one token. One
        # scale for all rows, and what is left of each row's own behind the product, is fused.
        shared = np.exp(np.log(linear.scales).mean()).astype(self._dtype)
        if shared == 1:  # as for a layer of zeros; TensorRT takes exactly 1 for no scale at all
            shared = np.nextafter(shared, np.zeros_like(shared))
        rows = self._dequantize(codes, shared)
        return Stored(rows, linear.bias, factors=linear.scales / shared.astype(np.float32))

    def _project(self, x: str, stored: Stored) -> str:
        graph = self._graph
        if stored.input_scale is not None:
            scale = self._constant(np.array(stored.input_scale))
            zero = graph.constant(np.array(0, dtype=np.int8))
            x = graph.node("QuantizeLinear", [x, scale, zero])
            x = graph.node("DequantizeLinear", [x, scale, zero])
        y = graph.node("MatMul", [x, graph.node("Transpose", [stored.rows], perm=[1, 0])])
        if stored.factors is not None:
            y = graph.node("Mul", [y, self._constant(stored.factors)])
        if stored.bias is not None:
            y = graph.node("Add", [y, self._constant(stored.bias)])
        return str(y)

    def _own_logit(self, x: str, stored: Stored) -> str:
        """x · row of each of the ``targets`` + its bias, [B, Q] float32."""
        graph = self._graph
        rows = graph.node("Gather", [stored.rows, "targets"])
        products = self._float32(graph.node("Mul", [rows, x]))
        own = graph.node("ReduceSum", [products, graph.constant(np.array([-1]))], keepdims=0)
        for op, values in (("Mul", stored.factors), ("Add", stored.bias)):
            if values is not None:
                constant = graph.constant(values.astype(np.float32))
                own = graph.node(op, [own, graph.node("Gather", [constant, "targets"])])
        return str(own)

    def _dequantize(self, codes: str, scales: Array) -> str:
        """Codes [out, in] times one scale, or one for each row."""
        zeros = self._graph.constant(np.zeros(scales.shape, dtype=np.int8))
        inputs = [codes, self._constant(scales), zeros]
        axis: dict[str, Any] = {"axis": 0} if scales.ndim else {}
        return str(self._graph.node("DequantizeLinear", inputs, **axis))
