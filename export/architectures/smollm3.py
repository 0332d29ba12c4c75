"""SmolLM3: every fourth layer has no rotary."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.errors import SourceError
from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout, with_biases
from edgechat.export.architectures.config import Config, base_spec, layer_windows
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {"num_key_value_heads": 4}


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    result = base_spec(config, "smollm3", capacity, theta=2e6, tied=True)
    layers = result.num_layers
    interval = config.integer("no_rope_layer_interval", 4)
    rotates = config.optional("no_rope_layers")  # 1 where there is rotary
    if rotates is None:
        rotates = [int((index + 1) % interval != 0) for index in range(layers)]
    if not isinstance(rotates, list) or [r in (0, 1) for r in rotates] != [True] * layers:
        raise SourceError(f"no_rope_layers is {rotates!r}, not a 0 or 1 for each layer.")
    windows = layer_windows(config, [not rotate for rotate in rotates])
    if not config.flag("use_sliding_window"):
        windows = (0,) * layers
    config.refuse_rest(known=("attention_bias", "mlp_bias", "max_window_layers"))
    rotary = tuple(r if rotate else None for r, rotate in zip(result.rotary, rotates, strict=True))
    return dataclasses.replace(result, windows=windows, rotary=rotary)


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    return CheckpointWeights(spec, read, with_biases(Layout(), values))


ARCHITECTURE = Architecture(model_types=("smollm3",), spec=spec, weights=weights)
