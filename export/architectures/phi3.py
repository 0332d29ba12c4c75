"""Phi-3, Phi-3.5 and Phi-4-mini: packed projections, longrope, rotary on a part of each head."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout
from edgechat.export.architectures.config import Config, base_spec, layer_windows
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {"original_max_position_embeddings": 4096}


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    rope = config.rope()
    original = config.optional("original_max_position_embeddings")
    if original is not None:
        rope["original_max_position_embeddings"] = original
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("su", "yarn"):  # what longrope was called in Phi's first configs
        rope["rope_type"] = "longrope"
    result = base_spec(
        config, "phi3", capacity, norm_eps=("rms_norm_eps", 1e-5), rotary_share=1.0, rope=rope
    )
    windows = layer_windows(config, [True] * result.num_layers)
    config.refuse_rest(neutral={"full_attn_mod": 1, "interpolate_factor": 1})
    return dataclasses.replace(result, windows=windows)


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    layout = Layout(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
    return CheckpointWeights(spec, read, layout)


ARCHITECTURE = Architecture(model_types=("phi3",), spec=spec, weights=weights)
