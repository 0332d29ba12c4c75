"""Mistral 7B and its kin: Llama with a sliding window on every layer."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout
from edgechat.export.architectures.config import Config, base_spec, layer_windows
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {"num_key_value_heads": 8, "sliding_window": 4096}


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    result = base_spec(config, "mistral", capacity)
    windows = layer_windows(config, [True] * result.num_layers)
    config.refuse_rest()
    return dataclasses.replace(result, windows=windows)


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    return CheckpointWeights(spec, read, Layout())


ARCHITECTURE = Architecture(model_types=("mistral",), spec=spec, weights=weights)
