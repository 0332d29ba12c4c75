"""Falcon with rotary positions (7B, 11B, 40B): LayerNorm, parallel residual, multi-query."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.errors import UnsupportedModelError
from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout
from edgechat.export.architectures.config import Config, base_spec
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

EPS, ACTIVATION = ("layer_norm_epsilon", 1e-5), ("activation", "gelu")


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config(values)
    heads, grouped = config.integer("num_attention_heads"), config.flag("new_decoder_architecture")
    single = config.flag("multi_query", True) and not grouped
    if config.flag("alibi"):
        raise UnsupportedModelError(
            "the config sets alibi = true; edgechat runs Falcon with rotary positions only."
        )
    usual = {
        "num_key_value_heads": 1 if single else config.integer("num_kv_heads", heads),
        "intermediate_size": config.integer("ffn_hidden_size", 4 * config.integer("hidden_size")),
        "max_position_embeddings": config.integer("max_position_embeddings", 2048),
    }
    parallel = config.flag("parallel_attn", True) or grouped
    config = Config({**values, **usual})
    result = base_spec(config, "falcon", capacity, norm_eps=EPS, activation=ACTIVATION)
    known = "new_decoder_architecture multi_query parallel_attn num_kv_heads ffn_hidden_size bias"
    config.refuse_rest(known=(*known.split(), "num_ln_in_parallel_attn", "ff_factor"))
    return dataclasses.replace(
        result, layer_norm=True, parallel=parallel, gated=False, tied_embeddings=False
    )


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    two = values.get("new_decoder_architecture") and values.get("num_ln_in_parallel_attn") != 1
    norms = ("input_layernorm", "input_layernorm" if spec.parallel else "post_attention_layernorm")
    attn_norm, mlp_norm = ("ln_attn", "ln_mlp") if two else norms
    embedding = "transformer.word_embeddings"
    qkv, o = "self_attention.query_key_value", "self_attention.dense"
    up, down = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
    layout = Layout(
        embedding=embedding,
        layers="transformer.h",
        attn_norm=attn_norm,
        qkv=(qkv,),
        grouped_qkv=True,
        o=o,
        mlp_norm=mlp_norm,
        gate_up=(up,),
        down=down,
        final_norm="transformer.ln_f",
        head=embedding if values.get("tie_word_embeddings", True) else "lm_head",
        biased=frozenset((qkv, o, up, down) if values.get("bias") else ()),
    )
    return CheckpointWeights(spec, read, layout)


ARCHITECTURE = Architecture(model_types=("falcon",), spec=spec, weights=weights)
