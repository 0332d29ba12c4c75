"""TensorRT 10.3 (JetPack 6): plain operators of opset 19 in the patterns that it fuses."""

from __future__ import annotations

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects import tensorrt_signals
from edgechat.export.dialects.ort_importance import mass_layers
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

    opsets = {"": 19}
    _rotary: tuple[str, str] = ("", "")
    _causal = ""

    def _cache(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        heads, dim, dtype = self._spec.num_kv_heads, self._spec.head_dim, self._dtype.name
        past, new = (BATCH, heads, self._capacity, dim), (BATCH, heads, STEPS, dim)
        kinds = ("key", "value")
        return (
            tuple(TensorInfo(f"past_{k}.{{i}}", dtype, past) for k in kinds),
            tuple(TensorInfo(f"new_{k}.{{i}}", dtype, new) for k in kinds),
        )

    def embed(self, table: Array) -> str:
        graph = self._graph
        axis = graph.constant(np.array([1]))
        cos, sin = (
            graph.weight(f"rotary.{name}", wide.astype(self._dtype))
            for name, wide in zip(("cos", "sin"), wide_tables(self._spec, self._capacity), strict=True)
        )
        cos, sin = (graph.node("Gather", [table, "position_ids"]) for table in (cos, sin))
        self._rotary = graph.node("Unsqueeze", [cos, axis]), graph.node("Unsqueeze", [sin, axis])
        self._causal = self._causal_mask()
        return super().embed(table)

    def attention(self, layer: int, qkv: str) -> str:
        graph, s = self._graph, self._spec
        qk, v = self._split(
            self._heads(qkv, s.num_heads + 2 * s.num_kv_heads),
            [s.num_heads + s.num_kv_heads, s.num_kv_heads],
            axis=1,
        )
        q, k = self._split(rotate(graph, s, qk, *self._rotary), [s.num_heads, s.num_kv_heads], axis=1)
        q = graph.node("Mul", [q, self._constant(s.head_dim**-0.5)])
        q, past = self._grouped(q), {}
        for kind, new in (("key", k), ("value", v)):
            graph.node("Identity", [new], [f"new_{kind}.{layer}"])
            past[kind] = graph.node("Concat", [f"past_{kind}.{layer}", new], axis=2)
        turned = graph.node("Transpose", [past["key"]], perm=[0, 1, 3, 2])
        scores = graph.node("Add", [graph.node("MatMul", [q, turned]), self._causal])
        weights = graph.node("Softmax", [scores], axis=-1)
        if self._importance and layer in mass_layers(s.num_layers):
            self._masses.append(self._mass(q, past["key"]))
        out = graph.node("MatMul", [weights, past["value"]])
        shape = graph.constant(np.array([0, s.num_heads, -1, s.head_dim]))
        return self._flat(graph.node("Reshape", [out, shape]))

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
        """Mass of the new rows goes to the slots they will be copied to."""
        graph, capacity = self._graph, self._capacity
        mass = tensorrt_signals.slot_mass(graph, q, keys, self._float32(self._causal), 1.0)
        cut, axis = graph.constant(np.array([capacity])), graph.constant(np.array([1]))
        zero, end = (graph.constant(np.array([n])) for n in (0, np.iinfo(np.int64).max))
        old = graph.node("Slice", [mass, zero, cut, axis])
        new = graph.node("Slice", [mass, cut, end, axis])
        lengths = graph.node("Unsqueeze", ["cache_length", axis])
        places = graph.node("Add", [lengths, self._steps()])
        return str(graph.node("ScatterElements", [old, places, new], axis=1))
