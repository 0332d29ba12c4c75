"""Granite 3: Llama with multipliers on embedding, attention, residual stream and logits."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout, with_biases
from edgechat.export.architectures.config import Config, base_spec
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config(values)
    result = base_spec(config, "granite", capacity)
    result = dataclasses.replace(
        result,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
    )
    known = "attention_bias mlp_bias residual_multiplier logits_scaling"
    config.refuse_rest(known=known.split())
    return result


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    config = Config(values)
    layout = Layout(
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1 / config.number("logits_scaling", 1.0),
    )
    return CheckpointWeights(spec, read, with_biases(layout, values))


ARCHITECTURE = Architecture(model_types=("granite",), spec=spec, weights=weights)
