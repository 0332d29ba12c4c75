"""OLMo 2: norms only behind attention and MLP; queries and keys normed, all heads at once."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout, with_biases
from edgechat.export.architectures.config import Config, base_spec
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config(values)
    result = base_spec(config, "olmo2", capacity, norm_eps=("rms_norm_eps", 1e-5))
    config.refuse_rest(known=("attention_bias",))
    return dataclasses.replace(result, post_norms=True)


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    layout = Layout(
        attn_norm=None,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        whole_qk_norm=True,
        attn_post_norm="post_attention_layernorm",
        mlp_norm=None,
        mlp_post_norm="post_feedforward_layernorm",
    )
    return CheckpointWeights(spec, read, with_biases(layout, values))


ARCHITECTURE = Architecture(model_types=("olmo2",), spec=spec, weights=weights)
