"""Qwen3: queries and keys are normed head by head."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout, with_biases
from edgechat.export.architectures.config import Config, base_spec
from edgechat.export.architectures.qwen2 import upper_windows
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096}


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    result = base_spec(config, "qwen3", capacity)
    result = dataclasses.replace(result, windows=upper_windows(config, result.num_layers))
    config.refuse_rest(known=("attention_bias",))
    return result


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    layout = Layout(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
    return CheckpointWeights(spec, read, with_biases(layout, values))


ARCHITECTURE = Architecture(model_types=("qwen3",), spec=spec, weights=weights)
