"""The decoder in plain numpy, float32, one layer at a time: for calibration and for measuring.

It runs the same spec and weights as the exported graph, and needs neither torch nor a runtime.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgechat.export.spec import Array, DecoderSpec, Ids, Linear, RotarySpec

ERF = tuple(map(np.float32, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)))


def rms_norm(x: Array, gain: Array | None, eps: float) -> Array:
    """x / rms(x) * gain over the last axis (arXiv 1910.07467); ``x`` itself without a gain."""
    if gain is None:
        return x
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)
    result: Array = x * scale.astype(np.float32) * gain
    return result


def linear(x: Array, layer: Linear) -> Array:
    y: Array = x @ layer.weight.T
    return y if layer.bias is None else y + layer.bias


def activation(spec: DecoderSpec, gate_up: Array) -> Array:
    """act(gate) * up of the packed projection [..., 2 * inner], or act of it all if not gated."""
    if not spec.gated:
        return _act(spec, gate_up)
    gate, up = np.split(gate_up, 2, axis=-1)
    result: Array = _act(spec, gate) * up
    return result


def attention(
    spec: DecoderSpec, layer: int, qkv: Array, q_norm: Array | None, k_norm: Array | None
) -> tuple[Array, Array, Array]:
    """Causal attention over packed ``qkv`` [windows, T, q + 2 kv], every window from position 0.

    Returns the attended values [windows, T, q], and keys after rotary and values, both
    [windows, T, kv heads, head_dim].
    """
    windows, length, _ = qkv.shape
    q, k, v = np.split(qkv, [spec.q_size, spec.q_size + spec.kv_size], axis=-1)
    q = rotate(spec.rotary[layer], _heads(spec, q, q_norm))
    k = rotate(spec.rotary[layer], _heads(spec, k, k_norm))
    v = _heads(spec, v, None)
    distance = np.arange(length)[:, None] - np.arange(length)
    seen = (distance >= 0) & (distance < (spec.windows[layer] or length))
    mask = np.where(seen, np.float32(0), np.float32(-np.inf))
    scale = np.float32(spec.attention_scale)
    out = np.empty_like(q)
    group = spec.num_heads // spec.num_kv_heads
    for window in range(windows):
        for head in range(spec.num_heads):
            keys, values = k[window, :, head // group], v[window, :, head // group]
            scores = soft_cap(q[window, :, head] @ keys.T * scale, spec.attention_softcap) + mask
            scores -= scores.max(axis=1, keepdims=True)
            weights = np.exp(scores)
            weights /= weights.sum(axis=1, keepdims=True)
            out[window, :, head] = weights @ values
    return out.reshape(windows, length, spec.q_size), k, v


def rotate(rotary: RotarySpec | None, x: Array) -> Array:
    """Rotary embedding of x [windows, T, heads, head_dim] at positions 0 … T - 1."""
    if rotary is None:
        return x
    angles = np.outer(np.arange(x.shape[1]), rotary.inv_freq)[None, :, None]
    factor, half = rotary.attention_factor, rotary.dim // 2
    cos, sin = (np.cos(angles) * factor), (np.sin(angles) * factor)
    cos, sin = cos.astype(np.float32), sin.astype(np.float32)
    first, second, rest = np.split(x, [half, 2 * half], axis=-1)
    parts = [first * cos - second * sin, second * cos + first * sin, rest]
    return np.concatenate(parts, axis=-1)


def soft_cap(x: Array, cap: float) -> Array:
    """cap * tanh(x / cap), or ``x`` where ``cap`` is 0."""
    return np.asarray(np.tanh(x / cap) * cap, dtype=np.float32) if cap else x


def losses(spec: DecoderSpec, x: Array, head: Linear, ids: Ids) -> NDArray[np.float64]:
    """Nats of each next token; ``x`` [T, hidden] is normed, ``ids`` [T] are the tokens read."""
    result = []
    for start in range(0, len(ids) - 1, 256):
        logits = soft_cap(linear(x[start : start + 256], head), spec.logit_softcap)
        targets = ids[start + 1 : start + 257]
        logits = logits[: len(targets)]
        top = logits.max(axis=1)
        total = np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)) + top
        result.append(total - logits[np.arange(len(targets)), targets])
    return np.concatenate(result)


def _heads(spec: DecoderSpec, x: Array, gain: Array | None) -> Array:
    """x [windows, T, heads * head_dim] split into heads and normed, head by head or all at once."""
    shape = (*x.shape[:2], -1, spec.head_dim)
    if gain is not None and len(gain) == spec.head_dim:
        return rms_norm(x.reshape(shape), gain, spec.norm_eps)
    return rms_norm(x, gain, spec.norm_eps).reshape(shape)


def _act(spec: DecoderSpec, x: Array) -> Array:
    result: Array
    if spec.activation == "silu":
        result = x / (1 + np.exp(-x))
    elif spec.activation == "gelu_tanh":
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
        result = np.float32(0.5) * x * (1 + np.tanh(inner))
    else:
        result = np.float32(0.5) * x * (1 + _erf(x * np.float32(math.sqrt(0.5))))
    return result


def _erf(x: Array) -> Array:
    """The error function to 1.5e-7 (Abramowitz and Stegun 7.1.26); numpy has none."""
    t = np.asarray(1 / (1 + 0.3275911 * np.abs(x)), dtype=np.float32)
    a1, a2, a3, a4, a5 = ERF
    polynomial = ((((a5 * t + a4) * t + a3) * t + a2) * t + a1) * t
    result: Array = np.sign(x) * (1 - polynomial * np.exp(-np.square(x)))
    return result
