"""Tiny random models of every architecture, as Hugging Face folders, and how they are judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from edgechat.bundle import load_bundle
from edgechat.runtime.onnx_engine import OnnxEngine

VOCAB = 320
Ids = NDArray[np.int64]
Logits = NDArray[np.float32]

COMMON: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    initializer_range=0.3,
)
LONGROPE: dict[str, Any] = dict(
    rope_type="longrope",
    rope_theta=1e4,
    partial_rotary_factor=0.5,
    short_factor=[1 + i / 8 for i in range(8)],
    long_factor=[2 + i for i in range(8)],
)
LLAMA3: dict[str, Any] = dict(
    rope_type="llama3",
    rope_theta=1e4,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
WINDOW: dict[str, Any] = dict(use_sliding_window=True, sliding_window=24, max_window_layers=1)
NEOX: dict[str, Any] = dict(hidden_size=128, num_key_value_heads=4)
GEMMA: dict[str, Any] = dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=24)
# name: (transformers class, config); the first name of each class stands for its architecture
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama 3": ("Llama", dict(rope_parameters=LLAMA3)),
    "mistral": ("Mistral", dict(sliding_window=24)),
    "mistral without window": ("Mistral", dict(sliding_window=None)),
    "qwen2": ("Qwen2", {}),
    "qwen2 with windows": ("Qwen2", WINDOW),
    "qwen3": ("Qwen3", dict(head_dim=32)),
    "qwen3 tied with windows": (
        "Qwen3",
        dict(head_dim=16, tie_word_embeddings=True, **WINDOW),
    ),
    "gemma2": ("Gemma2", dict(attn_logit_softcapping=5.0, final_logit_softcapping=9.0, **GEMMA)),
    "gemma3": ("Gemma3Text", dict(num_hidden_layers=7, **GEMMA)),
    "phi3": ("Phi3", {}),
    "phi3 longrope": (
        "Phi3",
        dict(hidden_size=128, rope_parameters=LONGROPE, original_max_position_embeddings=100),
    ),
    "phi3 longrope, short": ("Phi3", dict(hidden_size=128, rope_parameters=LONGROPE)),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=5)),
    "granite": (
        "Granite",
        dict(
            embedding_multiplier=2.0,
            attention_multiplier=0.2,
            residual_multiplier=0.7,
            logits_scaling=0.5,
            tie_word_embeddings=True,
        ),
    ),
    "olmo2": ("Olmo2", {}),
    "stablelm": ("StableLm", dict(hidden_size=128, partial_rotary_factor=0.5)),
    "stablelm parallel, biases": (
        "StableLm",
        dict(
            hidden_size=128,
            partial_rotary_factor=0.5,
            use_qkv_bias=True,
            use_parallel_residual=True,
        ),
    ),
    "gpt_neox": ("GPTNeoX", dict(rotary_pct=0.5, **NEOX)),
    "gpt_neox, rotary on 20 of 80": (
        "GPTNeoX",
        dict(hidden_size=160, num_attention_heads=2, num_key_value_heads=2, rotary_pct=0.25),
    ),
    "gpt_neox in series": (
        "GPTNeoX",
        dict(rotary_pct=1.0, use_parallel_residual=False, tie_word_embeddings=True, **NEOX),
    ),
    "falcon": ("Falcon", {}),
    "falcon 40B": ("Falcon", dict(new_decoder_architecture=True, num_kv_heads=2, bias=True)),
    "falcon in series": (
        "Falcon",
        dict(parallel_attn=False, multi_query=False, tie_word_embeddings=False),
    ),
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, name: str, seed: int = 0, **changes: Any) -> None:
    """Save a random model of ``MODELS`` with a byte-level tokenizer to ``folder``.

    Norms and biases are random too: transformers starts them at one and zero, which would hide
    a forgotten one.
    """
    kind, values = MODELS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **values, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    write_tokenizer(folder)


def write_tokenizer(folder: Path, template: str | None = CHATML) -> None:
    """A byte-level tokenizer with three special tokens in front; every text round-trips."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet, "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # what the file says, not the family's
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def random_ids(count: int, seed: int = 1) -> Ids:
    return np.random.default_rng(seed).integers(3, 259, size=count)


def transformers_logits(folder: Path, ids: Ids, **load: Any) -> Logits:
    """[T, vocab] of transformers in float32, from an empty cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **load)
    with torch.no_grad():
        logits: Logits = model.eval()(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


def bundle_logits(bundle: Path, ids: Ids, chunks: Sequence[int] = ()) -> Logits:
    """[T, vocab] of a bundle that is fed ``ids`` in pieces of ``chunks`` tokens and the rest."""
    engine = OnnxEngine(load_bundle(bundle), capacity=len(ids) + 3)
    parts, done = [], 0
    for size in [*chunks, len(ids) - sum(chunks)]:
        lengths = np.array([done], dtype=np.int32)
        parts.append(engine.step(ids[None, done : done + size], lengths, all_logits=True)[0].copy())
        done += size
    return np.concatenate(parts)


def divergence(exact: Logits, other: Logits) -> float:
    """Mean KL divergence in nats of ``other`` from ``exact``, both [T, vocab]."""
    p, q = (torch.from_numpy(x.astype(np.float64)).log_softmax(-1) for x in (exact, other))
    return float((p.exp() * (p - q)).sum(-1).mean())
