"""TensorRT 10.3 (JetPack 6): plain operators of opset 19 in the patterns that it fuses."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects import tensorrt_signals
from edgechat.export.dialects.tensorrt import BATCH, STEPS, TensorRt
from edgechat.export.dialects.tensorrt_rotary import rotate, wide_tables
from edgechat.export.spec import Array


class TensorRt103(TensorRt):
    """The cache is only read; the runtime copies ``new_key`` and ``new_value`` of each layer
    behind the ``cache_length`` slots in use.

    Attention is MatMul, Softmax, MatMul over the cache and the new rows, [C + S]. The query heads
    that share a KV head lie one behind the other, because TensorRT fuses neither a broadcast nor
    an attention in two parts.
    """

    opsets: ClassVar[dict[str, int]] = {"": 19}

    def _cache(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        heads, dim, dtype = self._spec.num_kv_heads, self._spec.head_dim, self._dtype.name
        past, new = (BATCH, heads, self._capacity, dim), (BATCH, heads, STEPS, dim)
        kinds = ("key", "value")
        return (
            tuple(TensorInfo(f"past_{k}.{{i}}", dtype, past) for k in kinds),
            tuple(TensorInfo(f"new_{k}.{{i}}", dtype, new) for k in kinds),
        )

    def _rotary_tables(self) -> tuple[str, str]:
        graph, heads = self._graph, self._graph.constant(np.array([1]))
        wide, tables = wide_tables(self._spec, self._capacity), []
        for name, table in zip(("cos", "sin"), wide, strict=True):
            weight = graph.weight(f"rotary.{name}", table.astype(self._dtype))
            rows = graph.node("Gather", [weight, "position_ids"])
            tables.append(graph.node("Unsqueeze", [rows, heads]))
        return tables[0], tables[1]

    def _rotate(self, x: str) -> str:
        return rotate(self._graph, self._spec, x, *self._rotary)

    def _attend(self, layer: int, q: str, k: str, v: str) -> str:
        graph, s = self._graph, self._spec
        q = self._grouped(q)
        graph.node("Identity", [k], [f"new_key.{layer}"])
        graph.node("Identity", [v], [f"new_value.{layer}"])
        keys = graph.node("Concat", [f"past_key.{layer}", k], axis=2)
        values = graph.node("Concat", [f"past_value.{layer}", v], axis=2)
        turned = graph.node("Transpose", [keys], perm=[0, 1, 3, 2])
        scaled = graph.node("Mul", [q, self._constant(s.head_dim**-0.5)])
        scores = graph.node("Add", [graph.node("MatMul", [scaled, turned]), self._causal])
        if self._gives_mass(layer):
            self._masses.append(self._mass(q, keys))
        out = graph.node("MatMul", [graph.node("Softmax", [scores], axis=-1), values])
        shape = graph.constant(np.array([0, s.num_heads, -1, s.head_dim]))
        return str(graph.node("Reshape", [out, shape]))

    def _norm(self, x: str, gamma: Array) -> str:
        graph = self._graph
        square = graph.node("Mul", [x, x])
        mean = graph.node("ReduceMean", [square, graph.constant(np.array([-1]))], keepdims=1)
        eps = graph.constant(np.array(self._spec.norm_eps, dtype=np.float32))
        root = graph.node("Sqrt", [graph.node("Add", [mean, eps])])
        normed = graph.node("Div", [x, root])
        return str(graph.node("Mul", [normed, graph.constant(gamma)]))

    def _causal_mask(self) -> str:
        """[B, 1, G * S, C + S]: the slots in use, and of the new rows one's own and those in
        front of it."""
        graph, group = self._graph, self._spec.num_heads // self._spec.num_kv_heads
        steps = self._steps()
        slots = graph.constant(np.arange(self._capacity))
        lengths = graph.node("Unsqueeze", ["cache_length", graph.constant(np.array([1, 2, 3]))])
        behind = graph.node("Add", [steps, graph.constant(np.array([self._capacity]))])
        places = graph.node("Concat", [slots, behind], axis=0)
        own = graph.node("Concat", [behind] * group, axis=0) if group > 1 else behind
        own = graph.node("Unsqueeze", [own, graph.constant(np.array([1]))])
        used = graph.node("Less", [places, lengths])
        new = graph.node("GreaterOrEqual", [places, graph.constant(np.array(self._capacity))])
        earlier = graph.node("And", [new, graph.node("LessOrEqual", [places, own])])
        return self._mask(graph.node("Or", [used, earlier]))

    def _mass(self, q: str, keys: str) -> str:
        """Mass of the new rows goes to the slots they will be copied to.

        ``q`` is not scaled: a product that the layer's attention has too would be shared with it,
        and attention no longer fused.
        """
        graph, capacity = self._graph, self._capacity
        mask, scale = self._float32(self._causal), self._spec.head_dim**-0.5
        mass = tensorrt_signals.slot_mass(graph, q, keys, mask, scale)
        cut, axis = graph.constant(np.array([capacity])), graph.constant(np.array([1]))
        zero, end = (graph.constant(np.array([n])) for n in (0, np.iinfo(np.int64).max))
        old = graph.node("Slice", [mass, zero, cut, axis])
        new = graph.node("Slice", [mass, cut, end, axis])
        lengths = graph.node("Unsqueeze", ["cache_length", axis])
        places = graph.node("Add", [lengths, self._steps()])
        return str(graph.node("ScatterElements", [old, places, new], axis=1))
