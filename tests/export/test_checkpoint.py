"""What a checkpoint's layout may do to the weights changes no score."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from released_configs import RELEASED

from edgechat.export import reference
from edgechat.export.architectures import find_architecture
from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout
from edgechat.export.rotary import padded
from edgechat.export.spec import Array, DecoderSpec, RotarySpec

SIZES: dict[str, Any] = dict(
    hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=8, head_dim=32
)
SIZES |= dict(num_attention_heads=4, num_key_value_heads=2)


def read(name: str, shape: tuple[int, ...]) -> Array:
    seed = sum(name.encode())
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def scores(spec: DecoderSpec, layout: Layout, x: Array) -> Array:
    """Of unrotated queries and keys, [H, T, T]."""
    layer = CheckpointWeights(spec, read, layout).layer(0)
    qkv = x @ layer.qkv.weight.T
    parts = np.split(qkv, [spec.q_size, spec.q_size + spec.kv_size], axis=-1)
    heads = []
    for part, gain in zip(parts[:2], (layer.q_norm, layer.k_norm), strict=True):
        assert gain is not None
        rows = part.reshape(len(x), -1, len(gain))
        normed = reference.rms_norm(rows, gain, spec.norm_eps)
        heads.append(normed.reshape(len(x), -1, spec.head_dim).swapaxes(0, 1))
    q, k = heads
    return q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(1, 2)


@pytest.mark.parametrize("whole", [False, True])
def test_norms_of_queries_and_keys_follow_the_order_of_padded_pairs(whole: bool) -> None:
    values = {**RELEASED["Qwen3-0.6B"], **SIZES}
    spec = find_architecture(values).spec(values, None)
    layout = Layout(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm", whole_qk_norm=whole)
    part = padded(RotarySpec(10, tuple(0.5**i for i in range(5)), 1.0, "default"))
    assert not all(part.inv_freq)
    x = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    reordered = dataclasses.replace(spec, rotary=(part,))
    assert np.abs(scores(reordered, layout, x) - scores(spec, layout, x)).max() < 1e-3
