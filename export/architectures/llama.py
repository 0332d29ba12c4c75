"""Llama 2 and 3, SmolLM, SmolLM2, TinyLlama and everything else with ``model_type: llama``."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgechat.errors import UnsupportedModelError
from edgechat.export.architectures.config import Config, rope_fields
from edgechat.export.rotary import rotary_spec
from edgechat.export.spec import (
    Architecture,
    Array,
    DecoderSpec,
    LayerWeights,
    Linear,
    TensorReader,
)


def spec(values: dict[str, Any], capacity: int | None) -> DecoderSpec:
    config = Config(values)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings")
    activation = str(config.optional("hidden_act") or "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"hidden_act {activation!r} is not supported; only silu is.")
    if heads % kv_heads:
        raise UnsupportedModelError(
            f"{heads} attention heads cannot share {kv_heads} KV heads evenly; the config is wrong."
        )
    if head_dim % 16:
        raise UnsupportedModelError(
            f"head size {head_dim} is not a multiple of 16, which the attention kernel requires."
        )
    theta, scaling = rope_fields(config)
    for name in ("attention_bias", "mlp_bias"):
        config.optional(name)
    result = DecoderSpec(
        architecture="llama",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=context,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rotary=rotary_spec(head_dim, theta or 10000.0, scaling, context, capacity or context),
        tied_embeddings=bool(values.get("tie_word_embeddings", False)),
    )
    config.refuse_rest(neutral=[("partial_rotary_factor", 1.0)])
    return result


class LlamaWeights:
    """Names and packing of a Llama checkpoint; biases are taken where the config says so."""

    def __init__(self, spec: DecoderSpec, read: TensorReader, values: dict[str, Any]) -> None:
        self._spec, self._read = spec, read
        self._attention_bias = bool(values.get("attention_bias"))
        self._mlp_bias = bool(values.get("mlp_bias"))

    def embedding(self) -> Array:
        return self._read("model.embed_tokens.weight", self._vocab_shape)

    def head(self) -> Linear:
        return Linear(self._read("lm_head.weight", self._vocab_shape))

    def final_norm(self) -> Array:
        return self._read("model.norm.weight", (self._spec.hidden_size,))

    def layer(self, index: int) -> LayerWeights[Linear]:
        s, p = self._spec, f"model.layers.{index}"
        hidden, inner = s.hidden_size, s.intermediate_size
        q, kv = (s.q_size, hidden), (s.kv_size, hidden)
        attention, mlp = f"{p}.self_attn", f"{p}.mlp"
        return LayerWeights(
            attn_norm=self._read(f"{p}.input_layernorm.weight", (hidden,)),
            qkv=self._packed(
                attention, {"q_proj": q, "k_proj": kv, "v_proj": kv}, self._attention_bias
            ),
            o=self._packed(attention, {"o_proj": (hidden, s.q_size)}, self._attention_bias),
            mlp_norm=self._read(f"{p}.post_attention_layernorm.weight", (hidden,)),
            gate_up=self._packed(
                mlp, {"gate_proj": (inner, hidden), "up_proj": (inner, hidden)}, self._mlp_bias
            ),
            down=self._packed(mlp, {"down_proj": (hidden, inner)}, self._mlp_bias),
        )

    @property
    def _vocab_shape(self) -> tuple[int, int]:
        return (self._spec.vocab_size, self._spec.hidden_size)

    def _packed(self, prefix: str, parts: dict[str, tuple[int, int]], bias: bool) -> Linear:
        weights = [self._read(f"{prefix}.{n}.weight", shape) for n, shape in parts.items()]
        biases = [self._read(f"{prefix}.{n}.bias", shape[:1]) for n, shape in parts.items() if bias]
        return Linear(np.concatenate(weights), np.concatenate(biases) if bias else None)


ARCHITECTURE = Architecture(model_types=("llama",), spec=spec, weights=LlamaWeights)
