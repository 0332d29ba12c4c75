"""Qwen2 and Qwen2.5: biases on queries, keys and values."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout
from edgechat.export.architectures.config import Config, base_spec, layer_windows
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {"num_key_value_heads": 32, "sliding_window": 4096}


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    result = base_spec(config, "qwen2", capacity)
    result = dataclasses.replace(result, windows=upper_windows(config, result.num_layers))
    config.refuse_rest()
    return result


def upper_windows(config: Config, layers: int) -> tuple[int, ...]:
    """Qwen's windows are off unless ``use_sliding_window``; then the upper layers have them."""
    first = config.whole("max_window_layers", 28)
    windows = layer_windows(config, [index >= first for index in range(layers)])
    return windows if config.flag("use_sliding_window") else (0,) * layers


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    layout = Layout()
    return CheckpointWeights(spec, read, Layout(biased=frozenset(layout.qkv)))


ARCHITECTURE = Architecture(model_types=("qwen2",), spec=spec, weights=weights)
