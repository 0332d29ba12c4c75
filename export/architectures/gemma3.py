"""Gemma 3 text: five of six layers have a window and a rotary base of their own; q/k norms."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, with_biases
from edgechat.export.architectures.config import (
    Config,
    base_spec,
    rotary_of,
    sliding_layers,
    windows_of,
)
from edgechat.export.architectures.gemma2 import ACTIVATION, KNOWN, LAYOUT, with_gemma
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    rope = config.rope()  # by kind of layer in transformers 5, a field for each before
    local = {"rope_theta": config.optional("rope_local_base_freq")}
    local |= rope.pop("sliding_attention", None) or {}
    rope |= rope.pop("full_attention", None) or {}
    result = base_spec(
        config, "gemma3_text", capacity, theta=1e6, tied=True, activation=ACTIVATION, rope=rope
    )
    result = with_gemma(config, result)
    pattern = config.integer("sliding_window_pattern", 6)
    usual = [(index + 1) % pattern != 0 for index in range(result.num_layers)]
    slides = sliding_layers(config, usual)
    inside = rotary_of(config, local, result.head_dim, capacity, 10000.0)
    rotary = tuple(inside if slide else r for slide, r in zip(slides, result.rotary, strict=True))
    result = dataclasses.replace(result, windows=windows_of(config, slides), rotary=rotary)
    config.refuse_rest(known=KNOWN)
    return result


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    layout = dataclasses.replace(LAYOUT, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
    return CheckpointWeights(spec, read, with_biases(layout, values))


ARCHITECTURE = Architecture(model_types=("gemma3_text",), spec=spec, weights=weights)
