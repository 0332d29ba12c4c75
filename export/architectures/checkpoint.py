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


def tensor_shapes(spec: DecoderSpec, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Every tensor that is read, by name; nothing else has to be in a checkpoint."""
    s, n, hidden = spec, layout, spec.hidden_size
    heads = (s.q_size, s.kv_size) if n.whole_qk_norm else (s.head_dim, s.head_dim)
    in_front = [n.attn_norm, n.mlp_norm]
    norms = dict.fromkeys([*in_front, n.attn_post_norm, n.mlp_post_norm], hidden)
    norms |= {n.q_norm: heads[0], n.k_norm: heads[1]}
    linears = {n.o: (hidden, s.q_size), n.down: (hidden, s.intermediate_size)}
    inner = [s.intermediate_size] * (1 + s.gated)
    for names, sizes in ((n.qkv, [s.q_size, s.kv_size, s.kv_size]), (n.gate_up, inner)):
        rows = sizes if len(names) > 1 else [sum(sizes)]
        linears |= {name: (size, hidden) for name, size in zip(names, rows, strict=True)}
    of_layer: dict[str, tuple[int, ...]] = {}
    for norm, size in norms.items():
        if norm is not None:
            of_layer[f"{norm}.weight"] = (size,)
            if s.layer_norm and norm in in_front:
                of_layer[f"{norm}.bias"] = (size,)
    for name, shape in linears.items():
        of_layer[f"{name}.weight"] = shape
        if name in n.biased:
            of_layer[f"{name}.bias"] = shape[:1]
    result: dict[str, tuple[int, ...]] = {f"{n.embedding}.weight": (s.vocab_size, hidden)}
    for index in range(s.num_layers):
        prefix = f"{n.layers}.{index}."
        result |= {prefix + name: shape for name, shape in of_layer.items()}
    result[f"{n.final_norm}.weight"] = (hidden,)
    if s.layer_norm:
        result[f"{n.final_norm}.bias"] = (hidden,)
    if not s.tied_embeddings:
        result[f"{n.head}.weight"] = (s.vocab_size, hidden)
    return result


class CheckpointWeights:
    """Weights of ``spec`` by the names of ``layout``; ``shapes`` are the tensors they are made of.

    LayerNorm becomes RMSNorm, exactly: a vector's mean is taken out of it once the mean over the
    outputs is taken out of everything that writes to the residual stream, and the norm's bias
    moves into the linear behind it (SliceGPT, arXiv 2401.15024).
    """

    def __init__(self, spec: DecoderSpec, read: TensorReader, layout: Layout) -> None:
        self._spec, self._read, self._layout = spec, read, layout
        self.shapes = tensor_shapes(spec, layout)
        tied = spec.tied_embeddings or layout.head == layout.embedding
        self.shared_table = f"{layout.embedding}.weight" if tied else None

    def embedding(self) -> Array:
        table = self._get(f"{self._layout.embedding}.weight")
        return _centred(table, axis=1) if self._spec.layer_norm else table

    def head(self) -> Linear:
        table = self._get(f"{self._layout.head}.weight")
        return self._behind(self._layout.final_norm, Linear(table))

    def final_norm(self) -> Array:
        return self._gain(self._layout.final_norm) * np.float32(self._layout.logit_scale)

    def layer(self, index: int) -> LayerWeights[Linear]:
        s, n, prefix = self._spec, self._layout, f"{self._layout.layers}.{index}."

        def norm(name: str | None) -> Array | None:
            return None if name is None else self._gain(prefix + name)

        def reads(names: tuple[str, ...], norm: str | None) -> Linear:
            linear = self._linear(prefix, names)
            return linear if norm is None else self._behind(prefix + norm, linear)

        qkv = reads(n.qkv, n.attn_norm)
        result = LayerWeights(
            attn_norm=norm(n.attn_norm),
            qkv=_ungrouped(s, qkv) if n.grouped_qkv else qkv,
            o=self._writes(prefix, n.o),
            mlp_norm=norm(n.mlp_norm),
            gate_up=reads(n.gate_up, n.mlp_norm),
            down=self._writes(prefix, n.down),
            q_norm=norm(n.q_norm),
            k_norm=norm(n.k_norm),
            attn_post_norm=norm(n.attn_post_norm),
            mlp_post_norm=norm(n.mlp_post_norm),
        )
        rotary = s.rotary[index]
        return result if rotary is None or all(rotary.inv_freq) else _paired(s, rotary, result)

    def _get(self, name: str) -> Array:
        return self._read(name, self.shapes[name])

    def _gain(self, name: str) -> Array:
        return self._get(f"{name}.weight") + np.float32(self._layout.norm_offset)

    def _linear(self, prefix: str, names: tuple[str, ...]) -> Linear:
        """The stacked rows of ``names``, which have biases either all or none."""
        weight = _stacked([self._get(f"{prefix}{name}.weight") for name in names])
        if names[0] not in self._layout.biased:
            return Linear(weight)
        return Linear(weight, _stacked([self._get(f"{prefix}{name}.bias") for name in names]))

    def _writes(self, prefix: str, name: str) -> Linear:
        """A projection to the residual stream."""
        linear = self._linear(prefix, (name,))
        scale = np.float32(self._layout.residual_scale)
        weight, bias = linear.weight, linear.bias
        if scale != 1:
            weight = weight * scale
            bias = None if bias is None else bias * scale
        if self._spec.layer_norm:
            weight = _centred(weight, axis=0)
            bias = None if bias is None else _centred(bias, axis=0)
        return Linear(weight, bias)

    def _behind(self, norm: str, linear: Linear) -> Linear:
        """``linear`` with the bias of the LayerNorm before it moved into its own."""
        if not self._spec.layer_norm:
            return linear
        shift = linear.weight @ self._get(f"{norm}.bias")
        return Linear(linear.weight, shift if linear.bias is None else linear.bias + shift)


def _stacked(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _centred(x: Array, axis: int) -> Array:
    x -= x.mean(axis=axis, keepdims=True)
    return x


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
