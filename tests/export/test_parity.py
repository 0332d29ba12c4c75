"""The exported graph computes what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import bundle_logits, transformers_logits
from transformers import AutoModelForCausalLM

from edgechat.bundle import load_bundle
from edgechat.export import export_model, open_source
from edgechat.runtime.onnx_engine import OnnxEngine

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one kv head, head_dim not hidden/heads": {"num_key_value_heads": 1, "head_dim": 32},
    "no gqa": {"num_key_value_heads": 4},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "dynamic inside the context": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_fp32_logits_equal_transformers(
    variant: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder(seed=7, **VARIANTS[variant])
    bundle = export_model(open_source(str(folder), print), tmp_path / "b", "fp32").folder
    ids = np.random.default_rng(1).integers(3, 259, size=150)
    expected, actual = transformers_logits(folder, ids), bundle_logits(bundle, ids, [1, 40, 7, 1])
    assert np.abs(actual - expected).max() < 1e-3
    assert (actual.argmax(1) == expected.argmax(1)).all()


def test_dynamic_scaling_is_fixed_for_the_exported_capacity(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """transformers rescales for the length it sees; the bundle for the length it may see."""
    folder = make_folder(
        seed=3,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    )
    bundle = export_model(open_source(str(folder), print), tmp_path / "b", "fp32", capacity=200)
    ids = np.random.default_rng(1).integers(3, 259, size=200)
    difference = ours_at(bundle.folder, ids) - transformers_logits(folder, ids)
    assert np.abs(difference).max() < 1e-3


def ours_at(bundle: Path, ids: np.ndarray) -> np.ndarray:
    engine = OnnxEngine(load_bundle(bundle), capacity=len(ids))
    return engine.step(ids[None], np.zeros(1, dtype=np.int32), all_logits=True)[0]


def test_sharded_and_half_precision_checkpoints_read_the_same(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    for dtype in ("bfloat16", "float16"):
        folder = make_folder(seed=5, shards=True, dtype=dtype)
        assert len(list(folder.glob("*.safetensors"))) > 1
        bundle = export_model(open_source(str(folder), print), tmp_path / dtype, "fp32").folder
        ids = np.random.default_rng(2).integers(3, 259, size=40)
        assert (
            np.abs(bundle_logits(bundle, ids, []) - transformers_logits(folder, ids)).max() < 1e-3
        )


def test_two_rows_share_one_engine(tiny_folder: Path, tiny_bundle: Path) -> None:
    """Rows of different length take decode steps together."""
    rng = np.random.default_rng(3)
    rows = [rng.integers(3, 259, size=n) for n in (20, 20)]
    engine = OnnxEngine(load_bundle(tiny_bundle), capacity=64, rows=2)
    engine.step(np.stack(rows), np.zeros(2, dtype=np.int32))
    nxt = np.array([[5], [9]])
    logits = engine.step(nxt, np.array([20, 12], dtype=np.int32))[:, 0]
    expected = [
        transformers_logits(tiny_folder, np.append(rows[0], 5))[-1],
        transformers_logits(tiny_folder, np.append(rows[1][:12], 9))[-1],
    ]
    assert np.abs(logits - np.stack(expected)).max() < 1e-3


@pytest.mark.slow
def test_real_model_equals_transformers(smollm2_gguf: Path, smollm2_fp32: Path) -> None:
    """512 positions of the real model, and 64 greedy tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_fp32 / "tokenizer.json"))
    text = Path(__file__).with_name("passage.txt").read_text(encoding="utf-8")
    ids = np.array(tokenizer.encode(text).ids[:512])
    assert len(ids) == 512
    load = {"gguf_file": smollm2_gguf.name}
    expected = transformers_logits(smollm2_gguf.parent, ids, **load)
    actual = bundle_logits(smollm2_fp32, ids, [100, 1, 300])
    assert np.abs(actual - expected).max() < 1e-3
    assert (actual.argmax(1) == expected.argmax(1)).all()

    model = AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, dtype=torch.float32, **load
    ).eval()
    prompt = torch.from_numpy(ids[None, :60])
    out = model.generate(prompt, do_sample=False, max_new_tokens=64, eos_token_id=-1)
    engine = OnnxEngine(load_bundle(smollm2_fp32), capacity=200)
    logits, greedy = engine.step(ids[None, :60], np.zeros(1, dtype=np.int32)), []
    for step in range(64):
        greedy.append(int(logits[0, -1].argmax()))
        logits = engine.step(np.array([greedy[-1:]]), np.array([60 + step], dtype=np.int32))
    assert greedy == out[0, 60:].tolist()
