"""StableLM 3B and 2: LayerNorm, rotary on a quarter of each head."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout
from edgechat.export.architectures.config import Config, base_spec
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

DEFAULTS: dict[str, Any] = {"num_key_value_heads": 32}


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config({**DEFAULTS, **values})
    result = base_spec(
        config, "stablelm", capacity, norm_eps=("layer_norm_eps", 1e-5), rotary_share=0.25
    )
    parallel = config.flag("use_parallel_residual")
    config.refuse_rest(known=("use_qkv_bias",), neutral={"rotary_scaling_factor": 1.0})
    return dataclasses.replace(result, layer_norm=True, parallel=parallel, tied_embeddings=False)


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    layout = Layout()
    if values.get("tie_word_embeddings"):
        layout = dataclasses.replace(layout, head=layout.embedding)
    if spec.parallel:  # attention and MLP share a norm
        layout = dataclasses.replace(layout, mlp_norm=layout.attn_norm)
    if values.get("use_qkv_bias"):
        layout = dataclasses.replace(layout, biased=frozenset(layout.qkv))
    return CheckpointWeights(spec, read, layout)


ARCHITECTURE = Architecture(model_types=("stablelm",), spec=spec, weights=weights)
