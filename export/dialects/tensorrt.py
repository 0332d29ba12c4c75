"""TensorRT, what all versions share: FP16 products and attention, FP32 residual stream, norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from edgechat.bundle import SURPRISAL_IDS, TensorInfo
from edgechat.export.dialects import signals, tensorrt_signals
from edgechat.export.dialects.common import BATCH, LOGITS, MASKED, Common, Tensors
from edgechat.export.dialects.tensorrt_products import Products, Stored
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.rounding import absmax_scales, round_to_nearest
from edgechat.export.quantize.static import half
from edgechat.export.spec import AnyLinear, Array, DecoderSpec, Linear, RotarySpec


class TensorRt(Products, Common, ABC):
    """Spells the verbs of :class:`~edgechat.export.dialects.base.Dialect`.

    ``dtype`` is float16, or float32 for a twin that ONNX Runtime's CPU compares with the model
    (TensorRT itself builds no float32 attention). ``int8`` stores the embedding in 8 bits; a
    projection is stored the way it comes. ``capacity`` is the length of the cache: TensorRT takes
    no other than a fixed one. ``importance`` adds the outputs ``surprisal``, ``hidden`` and
    ``attention_mass``.
    """

    opsets: ClassVar[dict[str, int]]

    def __init__(
        self,
        graph: GraphBuilder,
        spec: DecoderSpec,
        dtype: str,
        int8: bool,
        capacity: int,
        importance: bool = True,
    ) -> None:
        super().__init__(graph, dtype)
        self._spec, self._int8, self._importance = spec, int8, importance
        self._capacity = capacity
        self._table = np.zeros((0, 0), dtype=np.float32)
        self._embedding = Stored("")
        self._masses: list[str] = []
        self._grouped_masks: dict[int, str] = {}
        lengths = (TensorInfo("cache_length", "int64", (BATCH,)),)
        self._declare(lengths, self._cache(), capacity, LOGITS)
        self._rotary = {
            rotary: self._rotary_tables(rotary, f".{index}" if index else "")
            for index, rotary in enumerate(spec.rotaries)
        }
        self._masks = self._window_masks()

    @abstractmethod
    def _cache(self) -> tuple[Tensors, Tensors]:
        """The KV cache's inputs and outputs."""

    @abstractmethod
    def _rotary_tables(self, rotary: RotarySpec, suffix: str) -> tuple[str, str]:
        """cos and sin in the form ``_rotate`` wants, once for all layers that share ``rotary``;
        ``suffix`` tells their names from those of other tables."""

    @abstractmethod
    def _distance(self) -> str:
        """[B, 1, Q, T] int64: how many slots the place T of the keys lies in front of the query
        Q; negative for what no query may see. Q is S, or the queries as ``_grouped`` has them."""

    @abstractmethod
    def _rotate(self, rotary: RotarySpec, x: str) -> str:
        """Rotary embedding of ``x`` [B, heads, S, D]."""

    @abstractmethod
    def _group_mask(self, mask: str) -> str:
        """A mask of ``_window_masks`` for the scores of ``_grouped`` queries, [B, 1, G * S, T]."""

    @abstractmethod
    def _attend(self, layer: int, q: str, k: str, v: str) -> str:
        """Attention of the rotated ``q`` [B, H, S, D] over the cache with the new ``k`` and ``v``
        [B, H_kv, S, D] in it; [B, H, S, D]."""

    def embed(self, table: Array) -> str:
        if self._spec.tied_embeddings:
            self._table = table
        if self._int8:
            scales = half(absmax_scales(table))
            codes = self._graph.weight("embed", round_to_nearest(table, scales))
            rows = self._dequantize(codes, scales)
        else:
            rows = self._graph.weight("embed", table.astype(self._dtype))
        self._embedding = Stored(rows)
        x = self._float32(self._graph.node("Gather", [rows, "input_ids"]))
        return self._scaled_embedding(x)

    def add_norm(
        self, residual: str, update: str | None, post_norm: Array | None, gamma: Array | None
    ) -> tuple[str, str]:
        if update is not None:
            residual = self.add(residual, update, post_norm)
        return self._half(residual if gamma is None else self._norm(residual, gamma)), residual

    def linear(self, x: str, linear: AnyLinear, role: str, name: str) -> str:
        return self._project(x, self._store(linear, name))

    def attention(self, layer: int, qkv: str, q_norm: Array | None, k_norm: Array | None) -> str:
        graph, s = self._graph, self._spec
        rotary, rotated = s.rotary[layer], s.num_heads + s.num_kv_heads
        if q_norm is not None and k_norm is not None:
            q, k, v = self._split(qkv, [s.q_size, s.kv_size, s.kv_size], axis=-1)
            normed = [self._norm_heads(q, q_norm), self._norm_heads(k, k_norm), v]
            qkv = graph.node("Concat", normed, axis=-1)
        shape = graph.constant(np.array([0, 0, rotated + s.num_kv_heads, s.head_dim]))
        x = graph.node("Reshape", [qkv, shape])
        x = graph.node("Transpose", [x], perm=[0, 2, 1, 3])
        qk, v = self._split(x, [rotated, s.num_kv_heads], axis=1)
        qk = qk if rotary is None else self._rotate(rotary, qk)
        q, k = self._split(qk, [s.num_heads, s.num_kv_heads], axis=1)
        x = graph.node("Transpose", [self._attend(layer, q, k, v)], perm=[0, 2, 1, 3])
        return str(graph.node("Reshape", [x, graph.constant(np.array([0, 0, s.q_size]))]))

    def select(self, x: str) -> str:
        """The L positions of ``output_index``, and behind them the first Q, for surprisal.

        Listing both in one input would hide from TensorRT that L is 1: it would plan memory and
        kernels for the logits of a whole chunk.
        """
        picked = super().select(x)
        if not self._importance:
            return picked
        first = tensorrt_signals.rows(self._graph, x, None, "targets")
        return str(self._graph.node("Concat", [picked, first], axis=1))

    def activation(self, gate_up: str) -> str:
        if not self._spec.gated:
            return self._act(gate_up)
        inner = self._spec.intermediate_size
        gate, up = self._split(gate_up, [inner, inner], axis=-1)
        return str(self._graph.node("Mul", [self._act(gate), up]))

    def logits(self, x: str, head: AnyLinear | None) -> None:
        graph, read = self._graph, x
        if self._importance:
            read = tensorrt_signals.rows(graph, x, "output_index", None)
            x = tensorrt_signals.rows(graph, x, None, "output_index")
        if head is None:
            stored = self._embedding
            self._read_bytes += self._table.size * self._dtype.itemsize
        else:
            stored = self._store(head, "head")
        cap = self._spec.logit_softcap
        logits = self._float32(self._project(x, stored))
        graph.node("Identity", [signals.soft_cap(graph, logits, cap)], ["logits"])
        if not self._importance:
            return
        common = signals.first_rows(head or Linear(self._table), SURPRISAL_IDS)
        read_bytes = self._read_bytes
        scores = self._float32(self._project(read, self._store(common, "head.common")))
        self._read_bytes = read_bytes  # a decode step has no targets
        own = signals.soft_cap(graph, self._own_logit(read, stored), cap)
        signals.surprisal(graph, own, signals.soft_cap(graph, scores, cap))
        signals.attention_mass(graph, self._masses)

    def _plain_attention(self, layer: int, q: str, keys: str, values: str) -> str:
        """Attention in plain operators over the places of ``keys`` and ``values``
        [B, H_kv, T, D]; [B, H, S, D]."""
        graph, s = self._graph, self._spec
        q = graph.node("Mul", [self._grouped(q), self._constant(s.attention_scale)])
        scores = graph.node("MatMul", [q, graph.node("Transpose", [keys], perm=[0, 1, 3, 2])])
        scores = signals.soft_cap(graph, scores, s.attention_softcap, self._dtype.name)
        scores = graph.node("Add", [scores, self._grouped_mask(layer)])
        out = graph.node("MatMul", [graph.node("Softmax", [scores], axis=-1), values])
        shape = graph.constant(np.array([0, s.num_heads, -1, s.head_dim]))
        return str(graph.node("Reshape", [out, shape]))

    def _gives_mass(self, layer: int) -> bool:
        return self._importance and layer in signals.mass_layers(self._spec.windows)

    def _mass(self, layer: int, q: str, keys: str) -> str:
        """Softmax mass of the places of ``keys`` [B, H_kv, T, D], [B, T] float32.

        ``q`` is scaled in front of the product, or that would overflow float16, and by half of
        what the layer's attention scales it by: a product that attention has too would be shared
        with it, and attention no longer fused.
        """
        s, mask = self._spec, self._float32(self._grouped_mask(layer))
        half = self._graph.node("Mul", [self._grouped(q), self._constant(s.attention_scale / 2)])
        return signals.place_mass(self._graph, half, keys, mask, s.attention_softcap)

    def _norm_heads(self, x: str, gamma: Array) -> str:
        """Norm x [B, S, heads * D]: each head by itself, or all at once if gamma is as long."""
        graph = self._graph
        parts = graph.node("Reshape", [x, graph.constant(np.array([0, 0, -1, len(gamma)]))])
        normed = self._half(self._norm(self._float32(parts), gamma))
        return str(graph.node("Reshape", [normed, graph.constant(np.array([0, 0, -1]))]))

    def _act(self, x: str) -> str:
        if self._spec.activation == "silu":
            return str(self._graph.node("Mul", [x, self._graph.node("Sigmoid", [x])]))
        approximate = "tanh" if self._spec.activation == "gelu_tanh" else "none"
        return str(self._graph.node("Gelu", [x], approximate=approximate))

    def _grouped(self, q: str) -> str:
        """Queries [B, H, S, D] by the KV head they share, [B, H_kv, G * S, D]: TensorRT fuses
        neither a broadcast nor an attention in two parts."""
        shape = np.array([0, self._spec.num_kv_heads, -1, self._spec.head_dim])
        return str(self._graph.node("Reshape", [q, self._graph.constant(shape)]))

    def _grouped_mask(self, layer: int) -> str:
        window = self._spec.windows[layer]
        if window not in self._grouped_masks:
            self._grouped_masks[window] = self._group_mask(self._masks[window])
        return self._grouped_masks[window]

    def _split(self, x: str, sizes: list[int], axis: int) -> list[str]:
        constant = self._graph.constant(np.array(sizes))
        return list(self._graph.node("Split", [x, constant], len(sizes), axis=axis))

    def _steps(self) -> str:
        """0 … S - 1, int64."""
        graph = self._graph
        size = graph.node("Shape", ["input_ids"], start=1, end=2)
        size = graph.node("Squeeze", [size, graph.constant(np.array([0]))])
        zero, one = (graph.constant(np.array(n)) for n in (0, 1))
        return str(graph.node("Range", [zero, size, one]))

    def _window_masks(self) -> dict[int, str]:
        """What is added to scores by the length of a window (0: none), once for all layers.

        A window counts slots, and a slot is a position: right after compactions too.
        """
        graph, masks, distance = self._graph, {}, self._distance()
        seen = graph.node("GreaterOrEqual", [distance, graph.constant(np.array(0))])
        zero, masked = self._constant(0.0), self._constant(MASKED)
        for window in dict.fromkeys(self._spec.windows):
            visible = seen
            if window:
                near = graph.node("Less", [distance, graph.constant(np.array(window))])
                visible = graph.node("And", [seen, near])
            masks[window] = str(graph.node("Where", [visible, zero, masked]))
        return masks
