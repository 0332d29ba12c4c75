"""Gemma 3 text: five of six layers have a window and a rotary base of their own; q/k norms."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, with_biases
from edgechat.export.architectures.config import Config, base_spec, layer_windows, rotary_of
from edgechat.export.architectures.gemma2 import ACTIVATION, KNOWN, LAYOUT, with_gemma
from edgechat.export.spec import Architecture, DecoderSpec, ModelWeights, TensorReader


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config(values)
    rope = config.rope()  # by kind of layer in transformers 5, a field for each before
    local = rope.get("sliding_attention", {"rope_theta": config.optional("rope_local_base_freq")})
    rope = rope.get("full_attention", rope)
    result = base_spec(
        config, "gemma3_text", capacity, theta=1e6, tied=True, activation=ACTIVATION, rope=rope
    )
    result = with_gemma(config, result)
    pattern = config.integer("sliding_window_pattern", 6)
    slides = [(index + 1) % pattern != 0 for index in range(result.num_layers)]
    windows = layer_windows(config, slides)
    inside = rotary_of(config, local, result.head_dim, capacity, 10000.0)
    rotary = tuple(inside if w else r for w, r in zip(windows, result.rotary, strict=True))
    config.refuse_rest(known=KNOWN)
    return dataclasses.replace(result, windows=windows, rotary=rotary)


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> ModelWeights:
    layout = dataclasses.replace(LAYOUT, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
    return CheckpointWeights(spec, read, with_biases(layout, values))


ARCHITECTURE = Architecture(model_types=("gemma3_text",), spec=spec, weights=weights)
