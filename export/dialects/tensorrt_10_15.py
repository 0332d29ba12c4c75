"""TensorRT 10.15 and later (JetPack 7.2): the opset-24 operators that it maps to its own layers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects.common import BATCH, Tensors
from edgechat.export.dialects.tensorrt import TensorRt
from edgechat.export.rotary import rotary_tables
from edgechat.export.spec import Array, RotarySpec


class TensorRt1015(TensorRt):
    """The cache is written in place: each past and present pair is one buffer.

    ``cache_length`` [B] says where a row's new keys and values go. Attention gets an explicit
    mask: TensorRT aligns ``is_causal`` differently and ignores ``nonpad_kv_seqlen``. It has no
    ``softcap`` either: attention with one is spelled in plain operators.
    """

    opsets: ClassVar[dict[str, int]] = {"": 24}

    def _cache(self) -> tuple[Tensors, Tensors]:
        shape = (BATCH, self._spec.num_kv_heads, self._capacity, self._spec.head_dim)
        kinds = ("key", "value")
        return (
            tuple(TensorInfo(f"past_{k}.{{i}}", self._dtype.name, shape) for k in kinds),
            tuple(TensorInfo(f"present_{k}.{{i}}", self._dtype.name, shape) for k in kinds),
        )

    def _rotary_tables(self, rotary: RotarySpec, suffix: str) -> tuple[str, str]:
        cos, sin = (x.astype(self._dtype) for x in rotary_tables(rotary, self._capacity))
        weight = self._graph.weight
        return weight(f"rotary.cos{suffix}", cos), weight(f"rotary.sin{suffix}", sin)

    def _rotate(self, rotary: RotarySpec, x: str) -> str:
        inputs = [x, *self._rotary[rotary], "position_ids"]
        if rotary.dim == self._spec.head_dim:
            return str(self._graph.node("RotaryEmbedding", inputs))
        return str(self._graph.node("RotaryEmbedding", inputs, rotary_embedding_dim=rotary.dim))

    def _attend(self, layer: int, q: str, k: str, v: str) -> str:
        keys, values = self._update(f"key.{layer}", k), self._update(f"value.{layer}", v)
        if self._gives_mass(layer):
            self._masses.append(self._mass(layer, q, keys))
        if self._spec.attention_softcap:
            return self._plain_attention(layer, q, keys, values)
        inputs = [q, keys, values, self._masks[self._spec.windows[layer]]]
        return str(self._graph.node("Attention", inputs, scale=self._spec.attention_scale))

    def _update(self, name: str, new: str) -> str:
        present = f"present_{name}"
        inputs = [f"past_{name}", new, "cache_length"]
        self._graph.node("TensorScatter", inputs, [present], axis=-2, mode="linear")
        return present

    def _norm(self, x: str, gamma: Array) -> str:
        gain = self._graph.constant(gamma)
        eps = self._spec.norm_eps
        return str(self._graph.node("RMSNormalization", [x, gain], axis=-1, epsilon=eps))

    def _distance(self) -> str:
        graph = self._graph
        slots = graph.constant(np.arange(self._capacity))
        lengths = graph.node("Unsqueeze", ["cache_length", graph.constant(np.array([1]))])
        own = graph.node("Add", [lengths, self._steps()])  # [B, S]
        own = graph.node("Unsqueeze", [own, graph.constant(np.array([1, 3]))])
        return str(graph.node("Sub", [own, slots]))

    def _group_mask(self, mask: str) -> str:
        group = self._spec.num_heads // self._spec.num_kv_heads
        return str(self._graph.node("Concat", [mask] * group, axis=2))
