"""Reads the weights of any checkpoint, told where an architecture keeps them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgechat.export.spec import (
    Array,
    DecoderSpec,
    LayerWeights,
    Linear,
    RotarySpec,
    TensorReader,
)


@dataclass(frozen=True)
class Layout:
    """Names of a checkpoint's tensors; the defaults are Llama's.

    What belongs to a layer is named from ``layers``.<number> on. ``qkv`` and ``gate_up`` are one
    packed tensor or several to be stacked. With ``grouped_qkv`` the packed rows of each KV head
    stand together: its queries, its key, its value. With ``whole_qk_norm`` queries and keys are
    normed over all heads at once. ``biased`` names the linears that have a bias. ``norm_offset``
    is added to every norm's gain, ``residual_scale`` multiplies what is added to the residual
    stream, ``logit_scale`` logits.
    """

    embedding: str = "model.embed_tokens"
    layers: str = "model.layers"
    attn_norm: str | None = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str | None = None
    k_norm: str | None = None
    o: str = "self_attn.o_proj"
    attn_post_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_post_norm: str | None = None
    final_norm: str = "model.norm"
    head: str = "lm_head"
    biased: frozenset[str] = frozenset()
    grouped_qkv: bool = False
    whole_qk_norm: bool = False
    norm_offset: float = 0.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0


def with_biases(layout: Layout, values: dict[str, Any]) -> Layout:
    """``layout`` with the biases that a config's ``attention_bias`` and ``mlp_bias`` ask for."""
    biased = {*layout.qkv, layout.o} if values.get("attention_bias") else set()
    biased |= {*layout.gate_up, layout.down} if values.get("mlp_bias") else set()
    return replace(layout, biased=frozenset(biased))


class CheckpointWeights:
    """Weights of ``spec`` by the names of ``layout``.

    LayerNorm becomes RMSNorm, exactly: a vector's mean is taken out of it once the mean over the
    outputs is taken out of everything that writes to the residual stream, and the norm's bias
    moves into the linear behind it (SliceGPT, arXiv 2401.15024).
    """

    def __init__(self, spec: DecoderSpec, read: TensorReader, layout: Layout) -> None:
        self._spec, self._read, self._layout = spec, read, layout

    def embedding(self) -> Array:
        table = self._table(self._layout.embedding)
        return _centred(table, axis=1) if self._spec.layer_norm else table

    def head(self) -> Linear:
        return self._behind(self._layout.final_norm, Linear(self._table(self._layout.head)))

    def final_norm(self) -> Array:
        gain = self._gain(self._layout.final_norm, self._spec.hidden_size)
        return gain * np.float32(self._layout.logit_scale)

    def layer(self, index: int) -> LayerWeights[Linear]:
        s, n, prefix = self._spec, self._layout, f"{self._layout.layers}.{index}."
        hidden, inner = s.hidden_size, s.intermediate_size

        def norm(name: str | None, size: int = hidden) -> Array | None:
            return None if name is None else self._gain(prefix + name, size)

        def reads(names: tuple[str, ...], sizes: list[int], norm: str | None) -> Linear:
            shapes = sizes if len(names) > 1 else [sum(sizes)]
            parts = zip(names, shapes, strict=True)
            linear = self._linear(prefix, [(name, (rows, hidden)) for name, rows in parts])
            return linear if norm is None else self._behind(prefix + norm, linear)

        qkv = reads(n.qkv, [s.q_size, s.kv_size, s.kv_size], n.attn_norm)
        qkv = _ungrouped(s, qkv) if n.grouped_qkv else qkv
        heads = (s.q_size, s.kv_size) if n.whole_qk_norm else (s.head_dim, s.head_dim)
        result = LayerWeights(
            attn_norm=norm(n.attn_norm),
            qkv=qkv,
            o=self._writes(prefix, n.o, s.q_size),
            mlp_norm=norm(n.mlp_norm),
            gate_up=reads(n.gate_up, [inner] * (1 + s.gated), n.mlp_norm),
            down=self._writes(prefix, n.down, inner),
            q_norm=norm(n.q_norm, heads[0]),
            k_norm=norm(n.k_norm, heads[1]),
            attn_post_norm=norm(n.attn_post_norm),
            mlp_post_norm=norm(n.mlp_post_norm),
        )
        rotary = s.rotary[index]
        return result if rotary is None or all(rotary.inv_freq) else _paired(s, rotary, result)

    def _table(self, name: str) -> Array:
        return self._read(f"{name}.weight", (self._spec.vocab_size, self._spec.hidden_size))

    def _gain(self, name: str, size: int) -> Array:
        return self._read(f"{name}.weight", (size,)) + np.float32(self._layout.norm_offset)

    def _linear(self, prefix: str, parts: list[tuple[str, tuple[int, int]]]) -> Linear:
        """The stacked rows of ``parts``, which have biases either all or none."""
        weight = np.concatenate([self._read(f"{prefix}{n}.weight", shape) for n, shape in parts])
        if parts[0][0] not in self._layout.biased:
            return Linear(weight)
        biases = [self._read(f"{prefix}{n}.bias", shape[:1]) for n, shape in parts]
        return Linear(weight, np.concatenate(biases))

    def _writes(self, prefix: str, name: str, size: int) -> Linear:
        """A projection of ``size`` features to the residual stream."""
        linear = self._linear(prefix, [(name, (self._spec.hidden_size, size))])
        scale = np.float32(self._layout.residual_scale)
        weight, bias = linear.weight * scale, linear.bias
        bias = None if bias is None else bias * scale
        if self._spec.layer_norm:
            weight = _centred(weight, axis=0)
            bias = None if bias is None else _centred(bias, axis=0)
        return Linear(weight, bias)

    def _behind(self, norm: str, linear: Linear) -> Linear:
        """``linear`` with the bias of the LayerNorm before it moved into its own."""
        if not self._spec.layer_norm:
            return linear
        shift = linear.weight @ self._read(f"{norm}.bias", (self._spec.hidden_size,))
        return Linear(linear.weight, shift if linear.bias is None else linear.bias + shift)


def _centred(x: Array, axis: int) -> Array:
    result: Array = x - x.mean(axis=axis, keepdims=True)
    return result


def _ungrouped(spec: DecoderSpec, qkv: Linear) -> Linear:
    """Rows that stand KV head by KV head, brought to all queries, all keys, all values."""
    group = spec.num_heads // spec.num_kv_heads

    def reorder(x: Array) -> Array:
        heads = x.reshape(spec.num_kv_heads, group + 2, spec.head_dim, *x.shape[1:])
        parts = (heads[:, :group], heads[:, group], heads[:, group + 1])
        return np.concatenate([p.reshape(-1, *x.shape[1:]) for p in parts])

    return Linear(reorder(qkv.weight), None if qkv.bias is None else reorder(qkv.bias))


def _paired(
    spec: DecoderSpec, rotary: RotarySpec, layer: LayerWeights[Linear]
) -> LayerWeights[Linear]:
    """Queries, keys and their norms with the features of a head in the order ``rotary`` pairs them.

    Pairs are (i, i + dim / 2). Where ``rotary`` was padded with pairs that never turn, features
    behind the turning ones make those pairs; scores do not depend on the order.
    """
    turning, half = int(np.count_nonzero(rotary.inv_freq)), rotary.dim // 2
    first, second, rest = np.split(np.arange(spec.head_dim), [turning, 2 * turning])
    still = half - turning
    order = np.concatenate([first, rest[:still], second, rest[still:]])

    def reordered(x: Array, size: int) -> Array:
        """``x`` with its first ``size`` rows, those of whole heads, reordered."""
        rows = np.arange(len(x))
        rows[:size] = rows[:size].reshape(-1, spec.head_dim)[:, order].ravel()
        return x[rows]

    qkv, q_norm, k_norm, size = layer.qkv, layer.q_norm, layer.k_norm, spec.q_size + spec.kv_size
    bias = None if qkv.bias is None else reordered(qkv.bias, size)
    return replace(
        layer,
        qkv=Linear(reordered(qkv.weight, size), bias),
        q_norm=None if q_norm is None else reordered(q_norm, len(q_norm)),
        k_norm=None if k_norm is None else reordered(k_norm, len(k_norm)),
    )
