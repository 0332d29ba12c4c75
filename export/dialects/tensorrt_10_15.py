"""TensorRT 10.15 and later (JetPack 7.2): the opset-24 operators that it maps to its own layers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects import tensorrt_signals
from edgechat.export.dialects.ort_cpu import rotary_tables
from edgechat.export.dialects.tensorrt import BATCH, TensorRt
from edgechat.export.spec import Array


class TensorRt1015(TensorRt):
    """The cache is written in place: each past and present pair is one buffer.

    ``cache_length`` [B] says where a row's new keys and values go. Attention gets an explicit
    mask: TensorRT aligns ``is_causal`` differently and ignores ``nonpad_kv_seqlen``.
    """

    opsets: ClassVar[dict[str, int]] = {"": 24}

    def _cache(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        shape = (BATCH, self._spec.num_kv_heads, self._capacity, self._spec.head_dim)
        kinds = ("key", "value")
        return (
            tuple(TensorInfo(f"past_{k}.{{i}}", self._dtype.name, shape) for k in kinds),
            tuple(TensorInfo(f"present_{k}.{{i}}", self._dtype.name, shape) for k in kinds),
        )

    def _rotary_tables(self) -> tuple[str, str]:
        cos, sin = (x.astype(self._dtype) for x in rotary_tables(self._spec, self._capacity))
        return self._graph.weight("rotary.cos", cos), self._graph.weight("rotary.sin", sin)

    def _rotate(self, x: str) -> str:
        inputs, s = [x, *self._rotary, "position_ids"], self._spec
        if s.rotary.dim == s.head_dim:
            return str(self._graph.node("RotaryEmbedding", inputs))
        return str(self._graph.node("RotaryEmbedding", inputs, rotary_embedding_dim=s.rotary.dim))

    def _attend(self, layer: int, q: str, k: str, v: str) -> str:
        keys, values = self._update(f"key.{layer}", k), self._update(f"value.{layer}", v)
        if self._gives_mass(layer):
            self._masses.append(self._mass(q, keys))
        return str(self._graph.node("Attention", [q, keys, values, self._causal]))

    def _update(self, name: str, new: str) -> str:
        present = f"present_{name}"
        inputs = [f"past_{name}", new, "cache_length"]
        self._graph.node("TensorScatter", inputs, [present], axis=-2, mode="linear")
        return present

    def _norm(self, x: str, gamma: Array) -> str:
        gain = self._graph.constant(gamma)
        eps = self._spec.norm_eps
        return str(self._graph.node("RMSNormalization", [x, gain], axis=-1, epsilon=eps))

    def _causal_mask(self) -> str:
        """[B, 1, S, C]: a token sees its own slot and those in front of it."""
        graph = self._graph
        slots = graph.constant(np.arange(self._capacity))
        lengths = graph.node("Unsqueeze", ["cache_length", graph.constant(np.array([1]))])
        own = graph.node("Add", [lengths, self._steps()])  # [B, S]
        own = graph.node("Unsqueeze", [own, graph.constant(np.array([1, 3]))])
        return self._mask(graph.node("LessOrEqual", [slots, own]))

    def _mass(self, q: str, keys: str) -> str:
        s = self._spec
        group = s.num_heads // s.num_kv_heads
        mask = self._graph.node("Concat", [self._float32(self._causal)] * group, axis=2)
        q, scale = self._grouped(q), s.head_dim**-0.5
        return tensorrt_signals.slot_mass(self._graph, q, keys, mask, scale)
