"""TensorRT 10.3 (JetPack 6): plain operators of opset 20 in the patterns that it fuses."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects.common import BATCH, STEPS, Tensors
from edgechat.export.dialects.plain_rotary import rotate, wide_tables
from edgechat.export.dialects.tensorrt import TensorRt
from edgechat.export.spec import Array, RotarySpec


class TensorRt103(TensorRt):
    """The cache is only read; the runtime copies ``new_key`` and ``new_value`` of each layer
    behind the ``cache_length`` slots in use.

    Attention is MatMul, Softmax, MatMul over the cache and the new rows, [C + S].
    """

    opsets: ClassVar[dict[str, int]] = {"": 20}

    def _cache(self) -> tuple[Tensors, Tensors]:
        heads, dim, dtype = self._spec.num_kv_heads, self._spec.head_dim, self._dtype.name
        past, new = (BATCH, heads, self._capacity, dim), (BATCH, heads, STEPS, dim)
        kinds = ("key", "value")
        return (
            tuple(TensorInfo(f"past_{k}.{{i}}", dtype, past) for k in kinds),
            tuple(TensorInfo(f"new_{k}.{{i}}", dtype, new) for k in kinds),
        )

    def _rotary_tables(self, rotary: RotarySpec, suffix: str) -> tuple[str, str]:
        graph, heads = self._graph, self._graph.constant(np.array([1]))
        wide, tables = wide_tables(rotary, self._spec.head_dim, self._capacity), []
        for name, table in zip(("cos", "sin"), wide, strict=True):
            weight = graph.weight(f"rotary.{name}{suffix}", table.astype(self._dtype))
            rows = graph.node("Gather", [weight, "position_ids"])
            tables.append(graph.node("Unsqueeze", [rows, heads]))
        return tables[0], tables[1]

    def _rotate(self, rotary: RotarySpec, x: str) -> str:
        return rotate(self._graph, rotary, self._spec.head_dim, x, *self._rotary[rotary])

    def _attend(self, layer: int, q: str, k: str, v: str) -> str:
        graph = self._graph
        graph.node("Identity", [k], [f"new_key.{layer}"])
        graph.node("Identity", [v], [f"new_value.{layer}"])
        keys = graph.node("Concat", [f"past_key.{layer}", k], axis=2)
        values = graph.node("Concat", [f"past_value.{layer}", v], axis=2)
        if self._gives_mass(layer):
            self._masses.append(self._in_slots(self._mass(layer, q, keys)))
        return self._plain_attention(layer, q, keys, values)

    def _norm(self, x: str, gamma: Array) -> str:
        graph = self._graph
        square = graph.node("Mul", [x, x])
        mean = graph.node("ReduceMean", [square, graph.constant(np.array([-1]))], keepdims=1)
        eps = graph.constant(np.array(self._spec.norm_eps, dtype=np.float32))
        root = graph.node("Sqrt", [graph.node("Add", [mean, eps])])
        normed = graph.node("Div", [x, root])
        return str(graph.node("Mul", [normed, graph.constant(gamma)]))

    def _distance(self) -> str:
        """For grouped queries and the places [C + S] of the cache and the new rows."""
        graph, group = self._graph, self._spec.num_heads // self._spec.num_kv_heads
        slots = graph.constant(np.arange(self._capacity))
        lengths = graph.node("Unsqueeze", ["cache_length", graph.constant(np.array([1]))])
        new = graph.node("Add", [lengths, self._steps()])  # [B, S]: the slots they will be in
        used = graph.node("Less", [slots, lengths])
        behind_all = graph.constant(np.array(1 << 30))  # so that no query sees what is not used
        old = graph.node("Where", [used, slots, behind_all])
        places = graph.node("Concat", [old, new], axis=1)
        own = graph.node("Concat", [new] * group, axis=1) if group > 1 else new
        own = graph.node("Unsqueeze", [own, graph.constant(np.array([1, 3]))])
        places = graph.node("Unsqueeze", [places, graph.constant(np.array([1, 2]))])
        return str(graph.node("Sub", [own, places]))

    def _group_mask(self, mask: str) -> str:
        return mask

    def _in_slots(self, mass: str) -> str:
        """``mass`` [B, C + S] with that of the new rows in the slots they will be copied to."""
        graph, capacity = self._graph, self._capacity
        cut, axis = graph.constant(np.array([capacity])), graph.constant(np.array([1]))
        zero, end = (graph.constant(np.array([n])) for n in (0, np.iinfo(np.int64).max))
        old = graph.node("Slice", [mass, zero, cut, axis])
        new = graph.node("Slice", [mass, cut, end, axis])
        lengths = graph.node("Unsqueeze", ["cache_length", axis])
        places = graph.node("Add", [lengths, self._steps()])
        return str(graph.node("ScatterElements", [old, places, new], axis=1))
