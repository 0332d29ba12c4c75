"""What the graph tells about tokens is what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgechat.bundle import load_bundle
from edgechat.errors import EngineError
from edgechat.export import export_model, open_source
from edgechat.export.decoder import HIDDEN_DEPTH
from edgechat.export.dialects.signals import mass_layers
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy

LAYERS = 3


def export(folder: Path, target: Path, precision: str = "fp32", importance: bool = True) -> Path:
    source = open_source(str(folder), print)
    return export_model(source, target, precision=precision, importance=importance).folder


def start(count: int) -> np.ndarray:
    return np.array([count], dtype=np.int32)


@pytest.mark.parametrize("tied", [False, True])
def test_outputs_equal_transformers(
    tied: bool, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder(tie_word_embeddings=tied)
    engine = OnnxEngine(load_bundle(export(folder, tmp_path / "b")), 64, importance=True)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = np.random.default_rng(0).integers(3, 259, size=(1, 40))
    with torch.no_grad():
        want = model(torch.tensor(ids), output_hidden_states=True, output_attentions=True)
    log_p = torch.log_softmax(want.logits[0], dim=-1).numpy()
    (layer,) = mass_layers([0] * LAYERS)
    for begin, end in ((0, 25), (25, 40)):
        engine.step(ids[:, begin:end], start(begin))
        signals = engine.signals
        assert signals is not None
        losses = -log_p[np.arange(begin, end - 1), ids[0, begin + 1 : end]]
        assert np.abs(signals.surprisal[0] - losses).max() < 1e-3
        hidden = want.hidden_states[round(LAYERS * HIDDEN_DEPTH)][0, begin:end].numpy()
        assert np.abs(signals.hidden[0] - hidden).max() < 1e-3
        mass = want.attentions[layer][0, :, begin:end, :end].sum(dim=(0, 1)).numpy()
        assert np.abs(signals.attention_mass[0, :end] - mass).max() < 1e-3
        assert not signals.attention_mass[0, end:].any()


@pytest.mark.parametrize("precision", ["int8", "int8-weight"])
def test_quantised_surprisal_is_that_of_the_quantised_logits(
    precision: str, tiny_folder: Path, tmp_path: Path
) -> None:
    engine = OnnxEngine(load_bundle(export(tiny_folder, tmp_path / "b", precision)), 64, 1, 1, True)
    ids = np.random.default_rng(0).integers(3, 259, size=(1, 40))
    logits = engine.step(ids, start(0), True)[0]
    log_p = torch.log_softmax(torch.tensor(logits), dim=-1).numpy()
    assert engine.signals is not None
    losses = -log_p[np.arange(39), ids[0, 1:]]
    error = np.abs(engine.signals.surprisal[0] - losses)
    assert error.max() < 0.25 and error.mean() < 0.05


def test_every_token_gets_its_surprisal_across_chunks_and_steps(tiny_bundle: Path) -> None:
    engine = OnnxEngine(load_bundle(tiny_bundle), 64, importance=True)
    cache = KVCache(engine, make_policy("key", 4, 8))
    ids = np.random.default_rng(0).integers(3, 259, size=40)
    cache.feed(ids[:17])
    cache.feed(ids[17:18])
    for token in ids[18:30]:
        cache.feed_one(int(token))
    cache.feed(ids[30:])
    logits = engine.step(ids[None], start(0), True)[0]
    log_p = torch.log_softmax(torch.tensor(logits), dim=-1).numpy()
    losses = -log_p[np.arange(39), ids[1:]]
    assert np.abs(cache.slots.surprisal[1:] - losses).max() < 1e-3


def test_a_bundle_without_importance_runs_a_plain_window_only(
    tiny_folder: Path, tmp_path: Path
) -> None:
    plain = load_bundle(export(tiny_folder, tmp_path / "b", importance=False))
    assert not plain.manifest.has_importance
    full = load_bundle(export(tiny_folder, tmp_path / "c"))
    ids = np.random.default_rng(0).integers(3, 259, size=(1, 20))
    one, other = (OnnxEngine(b, 64).step(ids, start(0)).copy() for b in (plain, full))
    assert np.array_equal(one, other)
    with pytest.raises(EngineError, match="--recall-blocks 0"):
        OnnxEngine(plain, 64, importance=True)


@pytest.mark.parametrize("kv", ["fp32", "int8"])
def test_written_slots_are_read_back_at_another_place(
    kv: str, tiny_folder: Path, tmp_path: Path
) -> None:
    bundle = export_model(open_source(str(tiny_folder), print), tmp_path / "b", "fp32", kv)
    engine = OnnxEngine(bundle, 64)
    ids = np.random.default_rng(0).integers(3, 259, size=(1, 20))
    engine.step(ids, start(0))
    before = engine.read(0, 5, 10)
    engine.write(0, 30, before, 5)
    engine.write(0, 5, engine.read(0, 30, 10), 30)  # and back: rotations cancel out
    error = np.abs(engine.read(0, 5, 10).astype(np.float32) - before.astype(np.float32))
    assert error.max() < (1e-4 if kv == "fp32" else 3)
