"""How llama.cpp's converter stores each architecture, told in Hugging Face's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
POST_NORM = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
RMS_EPS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
PLAIN_MLP = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
WINDOW = {"attention.sliding_window": "sliding_window"}
CAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
GEMMA_27B_LAYERS = (46, 62)  # of Gemma 2 and 3: llama.cpp, too, tells that size by its depth


@dataclass(frozen=True)
class Family:
    """One ``general.architecture``.

    ``whole`` and ``layer`` give tensors their Hugging Face names (those of a layer behind
    ``layers``.<number>). ``fields`` gives metadata keys, without the architecture in front,
    their config names; ``ignored`` keys change nothing; ``fixed`` is what all files imply.
    ``interleaved``: rows of queries and keys were reordered for llama.cpp's rotary.
    ``ungrouped``: packed rows of queries, keys and values were sorted by kind. ``norm_offset``
    was added to norm weights.
    """

    model_type: str
    whole: Mapping[str, str] = field(default_factory=lambda: WHOLE)
    layers: str = "model.layers"
    layer: Mapping[str, str] = field(default_factory=lambda: LAYER)
    fields: Mapping[str, str] = field(default_factory=lambda: RMS_EPS)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    interleaved: bool = False
    ungrouped: bool = False
    norm_offset: float = 0.0


LLAMA = Family("llama", interleaved=True)
GEMMA2 = Family(
    "gemma2", layer={**LAYER, **POST_NORM}, fields={**RMS_EPS, **WINDOW, **CAPS}, norm_offset=1.0
)
FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3", layer={**LAYER, **QK_NORM}),
    "gemma2": GEMMA2,
    "gemma3": replace(
        GEMMA2,
        model_type="gemma3_text",
        layer={**GEMMA2.layer, **QK_NORM},
        fields={**GEMMA2.fields, "rope.freq_base_swa": "rope_local_base_freq"},
    ),
    "phi3": Family(
        "phi3",
        layer={**LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        fields={**RMS_EPS, **WINDOW},
    ),
    "smollm3": replace(LLAMA, model_type="smollm3", fixed={"no_rope_layer_interval": 4}),
    "granite": replace(
        LLAMA,
        model_type="granite",
        fields={
            **RMS_EPS,
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "olmo2": Family("olmo2", layer={**LAYER, **QK_NORM, **POST_NORM}),
    "stablelm": Family(
        "stablelm",
        fields={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
    ),
    "gptneox": Family(
        "gpt_neox",
        whole={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        layers="gpt_neox.layers",
        layer={
            **LAYER,
            **PLAIN_MLP,
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
        },
        fields={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        ungrouped=True,
    ),
    "falcon": Family(
        "falcon",
        whole={
            "token_embd": "transformer.word_embeddings",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layers="transformer.h",
        layer={
            **PLAIN_MLP,
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
        },
        fields={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        ignored=frozenset({"tensor_data_layout"}),
        ungrouped=True,
    ),
}
