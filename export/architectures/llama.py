"""Llama 2 and 3, SmolLM, SmolLM2, TinyLlama and everything else with ``model_type: llama``."""

from __future__ import annotations

from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout, with_biases
from edgechat.export.architectures.config import Config, base_spec
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config(values)
    result = base_spec(config, "llama", capacity)
    config.refuse_rest(known=("attention_bias", "mlp_bias"))
    return result


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    return CheckpointWeights(spec, read, with_biases(Layout(), values))


ARCHITECTURE = Architecture(model_types=("llama",), spec=spec, weights=weights)
