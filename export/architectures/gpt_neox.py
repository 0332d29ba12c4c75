"""GPT-NeoX and Pythia: LayerNorm, parallel residual, an MLP without gate, biases everywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgechat.export.architectures.checkpoint import CheckpointWeights, Layout
from edgechat.export.architectures.config import Config, base_spec
from edgechat.export.spec import Architecture, DecoderSpec, TensorReader

EPS, ACTIVATION = ("layer_norm_eps", 1e-5), ("hidden_act", "gelu")


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config(values)
    older = {
        "rope_theta": config.optional("rotary_emb_base"),
        "partial_rotary_factor": config.optional("rotary_pct"),
    }
    result = base_spec(
        config,
        "gpt_neox",
        capacity,
        norm_eps=EPS,
        activation=ACTIVATION,
        rotary_share=0.25,
        rope={**older, **config.rope()},
    )
    parallel = config.flag("use_parallel_residual", True)
    config.refuse_rest(known=("attention_bias",))
    return dataclasses.replace(
        result, layer_norm=True, parallel=parallel, gated=False, tied_embeddings=False
    )


def weights(spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> CheckpointWeights:
    embedding = "gpt_neox.embed_in"
    qkv, o = "attention.query_key_value", "attention.dense"
    up, down = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
    layout = Layout(
        embedding=embedding,
        layers="gpt_neox.layers",
        qkv=(qkv,),
        grouped_qkv=True,
        o=o,
        gate_up=(up,),
        down=down,
        final_norm="gpt_neox.final_layer_norm",
        head=embedding if values.get("tie_word_embeddings") else "embed_out",
        biased=frozenset({up, down} | ({qkv, o} if values.get("attention_bias", True) else set())),
    )
    return CheckpointWeights(spec, read, layout)


ARCHITECTURE = Architecture(model_types=("gpt_neox",), spec=spec, weights=weights)
