"""Gemma 2: soft caps, a window on every other layer, norms behind attention and MLP."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout, with_biases
from edgechat.export.architectures.config import Config, base_spec, layer_windows
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
KNOWN = ("attention_bias", "hidden_act")  # hidden_activation is what counts
LAYOUT = Layout(
    attn_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
    norm_offset=1.0,
)


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    result = base_spec(config, "gemma2", capacity, tied=True, activation=ACTIVATION)
    result = with_gemma(config, result)
    slides = [index % 2 == 0 for index in range(result.num_layers)]
    result = dataclasses.replace(result, windows=layer_windows(config, slides))
    config.refuse_rest(known=KNOWN)
    return result


def with_gemma(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """What Gemma 2 and 3 have in common."""
    return dataclasses.replace(
        spec,
        attention_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_softcap=config.number("attn_logit_softcapping", 0.0),
        logit_softcap=config.number("final_logit_softcapping", 0.0),
        embedding_scale=spec.hidden_size**0.5,
        post_norms=True,
    )


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    return CheckpointWeights(spec, read, with_biases(LAYOUT, values))


ARCHITECTURE = Architecture(model_types=("gemma2",), spec=spec, weights=weights)
