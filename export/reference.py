"""The decoder in plain numpy, float32, one layer at a time: for calibration and for measuring.

It runs the same spec and weights as the exported graph, and needs neither torch nor a runtime.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgechat.export.spec import Array, DecoderSpec, Ids, Linear


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    """x / rms(x) * gain over the last axis (arXiv 1910.07467)."""
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)
    result: Array = x * scale.astype(np.float32) * gain
    return result


def linear(x: Array, layer: Linear) -> Array:
    y: Array = x @ layer.weight.T
    return y if layer.bias is None else y + layer.bias


def gated_activation(gate_up: Array) -> Array:
    """silu(gate) * up of the packed projection [..., 2 * inner]."""
    gate, up = np.split(gate_up, 2, axis=-1)
    result: Array = gate / (1 + np.exp(-gate)) * up
    return result


def attention(spec: DecoderSpec, qkv: Array) -> tuple[Array, Array, Array]:
    """Causal attention over packed ``qkv`` [windows, T, q + 2 kv], every window from position 0.

    Returns the attended values [windows, T, q], and keys after rotary and values, both
    [windows, T, kv heads, head_dim].
    """
    windows, length, _ = qkv.shape
    q, k, v = np.split(qkv, [spec.q_size, spec.q_size + spec.kv_size], axis=-1)
    q = rotate(spec, q.reshape(windows, length, spec.num_heads, spec.head_dim))
    k = rotate(spec, k.reshape(windows, length, spec.num_kv_heads, spec.head_dim))
    v = v.reshape(windows, length, spec.num_kv_heads, spec.head_dim)
    mask = np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1)
    scale = np.float32(spec.head_dim**-0.5)
    out = np.empty_like(q)
    group = spec.num_heads // spec.num_kv_heads
    for window in range(windows):
        for head in range(spec.num_heads):
            keys, values = k[window, :, head // group], v[window, :, head // group]
            scores = q[window, :, head] @ keys.T * scale + mask
            scores -= scores.max(axis=1, keepdims=True)
            weights = np.exp(scores)
            weights /= weights.sum(axis=1, keepdims=True)
            out[window, :, head] = weights @ values
    return out.reshape(windows, length, spec.q_size), k, v


def rotate(spec: DecoderSpec, x: Array) -> Array:
    """Rotary embedding of x [windows, T, heads, head_dim] at positions 0 … T - 1."""
    angles = np.outer(np.arange(x.shape[1]), spec.rotary.inv_freq)[None, :, None]
    factor, half = spec.rotary.attention_factor, spec.rotary.dim // 2
    cos, sin = (np.cos(angles) * factor), (np.sin(angles) * factor)
    cos, sin = cos.astype(np.float32), sin.astype(np.float32)
    first, second, rest = np.split(x, [half, 2 * half], axis=-1)
    parts = [first * cos - second * sin, second * cos + first * sin, rest]
    return np.concatenate(parts, axis=-1)


def losses(x: Array, head: Array, ids: Ids) -> NDArray[np.float64]:
    """Nats of each next token; ``x`` [T, hidden] is normed, ``ids`` [T] are the tokens read."""
    result = []
    for start in range(0, len(ids) - 1, 256):
        logits = x[start : start + 256] @ head.T
        targets = ids[start + 1 : start + 257]
        logits = logits[: len(targets)]
        top = logits.max(axis=1)
        total = np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)) + top
        result.append(total - logits[np.arange(len(targets)), targets])
    return np.concatenate(result)
