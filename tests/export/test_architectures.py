"""Every architecture computes what transformers computes, exactly and quantised."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import (
    COMMON,
    MODELS,
    bundle_logits,
    divergence,
    random_ids,
    transformers_logits,
    write_model,
)
from transformers import AutoModelForCausalLM

from edgechat.bundle import Bundle, load_bundle
from edgechat.export import export_model, open_source
from edgechat.export.architectures import find_architecture
from edgechat.export.dialects.signals import mass_layers
from edgechat.export.quantize.activations import perplexity
from edgechat.export.quantize.rotate import RotatedWeights
from edgechat.export.sources.base import read_checked
from edgechat.runtime.onnx_engine import OnnxEngine

START = np.zeros(1, dtype=np.int32)
# nats of KL divergence by precision and KV cache; models that share no weights: 0.7 to 2.4
LIMITS = {("int8", "fp32"): 0.006, ("int8-weight", "fp32"): 0.003, ("fp32", "int8"): 0.004}


@pytest.mark.parametrize("name", MODELS)
def test_fp32_equals_transformers(name: str, tmp_path: Path) -> None:
    """Over prefill, decode and chunks, at lengths of several windows; surprisal, the numpy
    decoder and the rotated weights, which quantising starts from, lose nothing either."""
    write_model(tmp_path, name)
    source = open_source(str(tmp_path), print)
    bundle = export_model(source, tmp_path / "b", "fp32").folder
    ids = random_ids(150)
    expected = transformers_logits(tmp_path, ids)
    actual = bundle_logits(bundle, ids, [1, 40, 7, 1, 1])
    assert np.abs(actual - expected).max() < 1e-3
    assert (actual.argmax(1) == expected.argmax(1)).all()
    engine = OnnxEngine(load_bundle(bundle), capacity=160, importance=True)
    engine.step(ids[None], START)
    assert engine.signals is not None
    log_p = torch.from_numpy(expected[:-1]).log_softmax(-1).numpy()
    surprisal = -log_p[np.arange(len(ids) - 1), ids[1:]]
    assert np.abs(engine.signals.surprisal[0] - surprisal).max() < 1e-3
    architecture = find_architecture(source.config)
    spec = architecture.spec(source.config, None)
    mass = engine.signals.attention_mass.sum()
    assert mass == pytest.approx(len(ids) * spec.num_heads, rel=1e-3)
    weights = architecture.weights(spec, partial(read_checked, source), source.config)
    wanted = pytest.approx(np.exp(surprisal.mean()), rel=1e-3)
    assert perplexity(weights, spec, ids) == wanted
    plain = dataclasses.replace(spec, tied_embeddings=False, embedding_scale=1.0)
    assert perplexity(RotatedWeights(weights, spec), plain, ids) == wanted


@pytest.mark.parametrize("name", MODELS)
def test_head_and_embedding_may_be_one_or_two(name: str, tmp_path: Path) -> None:
    kind, values = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **values})
    write_model(tmp_path, name, tie_word_embeddings=not config.tie_word_embeddings)
    bundle = export_model(open_source(str(tmp_path), print), tmp_path / "b", "fp32").folder
    ids = random_ids(150)
    difference = bundle_logits(bundle, ids) - transformers_logits(tmp_path, ids)
    assert np.abs(difference).max() < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_after_a_compaction_equals_transformers_with_the_dropped_tokens_hidden(
    name: str, tmp_path: Path
) -> None:
    """Whatever the layer's rotary is, and with windows counted in slots: what later tokens see
    is what they would see had the dropped ones been masked."""
    write_model(tmp_path, name)
    bundle = export_model(open_source(str(tmp_path), print), tmp_path / "b", "fp32")
    ids, read, dropped = random_ids(150), 90, 37
    engine = OnnxEngine(bundle, capacity=128)
    engine.step(ids[None, :read], START)
    engine.compact(0, np.arange(dropped, read))
    left = np.array([read - dropped], dtype=np.int32)
    actual = engine.step(ids[None, read:], left, all_logits=True)[0]
    expected = hidden_logits(tmp_path, ids, read, dropped)
    assert np.abs(actual - expected).max() < 1e-3
    assert (actual.argmax(1) == expected.argmax(1)).all()


def hidden_logits(folder: Path, ids: np.ndarray, read: int, dropped: int) -> np.ndarray:
    """transformers' logits from token ``read`` on, which do not see the first ``dropped``."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    place = torch.arange(len(ids))
    distance = place[:, None] - place
    seen = (distance >= 0) & ~((place[:, None] >= read) & (place < dropped))
    window = getattr(model.config, "sliding_window", None)
    masks = {
        kind: torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
        for kind, visible in {
            "full_attention": seen,
            "sliding_attention": seen & (distance < (window or len(ids))),
        }.items()
    }
    mixed = getattr(model.config, "layer_types", None) is not None
    mask = masks if mixed else masks["sliding_attention"]
    with torch.no_grad():
        logits: np.ndarray = model(torch.from_numpy(ids)[None], attention_mask=mask).logits[0]
    return logits[read:].numpy()


ONE_LAYER: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("mistral", {}),
    "whole": ("llama", {}),
    "window, own rotary base": ("gemma3", {"layer_types": ["sliding_attention"]}),
    "whole, rotary of few": ("gemma3", {"layer_types": ["full_attention"]}),
    "soft cap and window": ("gemma2", {"layer_types": ["sliding_attention"]}),
    "no rotary": ("smollm3", {"no_rope_layers": [0]}),
    "longrope": ("phi3 longrope", {}),
    "part of each head": ("gpt_neox", {}),
    "normed heads": ("olmo2", {}),
}


@pytest.mark.parametrize("case", ONE_LAYER)
def test_compacting_one_layer_equals_never_having_read_the_dropped_tokens(
    case: str, tmp_path: Path
) -> None:
    """With gaps of several lengths, and more slots kept than the window is long."""
    name, changes = ONE_LAYER[case]
    write_model(tmp_path, name, num_hidden_layers=1, **changes)
    bundle = export_model(open_source(str(tmp_path), print), tmp_path / "b", "fp32")
    ids = random_ids(110)
    kept = np.array([*range(4), *range(20, 33), 40, *range(60, 90)])
    compacted, anew = OnnxEngine(bundle, capacity=128), OnnxEngine(bundle, capacity=128)
    compacted.step(ids[None, :90], START)
    compacted.compact(0, kept)
    anew.step(ids[None, kept], START)
    lengths = np.array([len(kept)], dtype=np.int32)
    actual, expected = (
        engine.step(ids[None, 90:], lengths, all_logits=True)[0] for engine in (compacted, anew)
    )
    assert np.abs(actual - expected).max() < 1e-3
    moved = compacted.read(0, 3, 40)
    anew.write(0, 10, moved, origin=3)
    assert np.abs(anew.read(0, 10, 40)[:, 1] - moved[:, 1]).max() == 0
    anew.write(0, 3, anew.read(0, 10, 40), origin=10)
    assert np.abs(anew.read(0, 3, 40) - moved).max() < 1e-4


@pytest.mark.parametrize("name", ["gemma3", "smollm3", "phi3 longrope", "gpt_neox"])
def test_an_int8_cache_is_compacted_as_well_as_a_float_one(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, name, initializer_range=0.1)
    source = open_source(str(tmp_path), print)
    ids = random_ids(150)

    def later(bundle: Bundle) -> np.ndarray:
        engine = OnnxEngine(bundle, capacity=128)
        engine.step(ids[None, :90], START)
        engine.compact(0, np.array([*range(4), *range(40, 90)]))
        lengths = np.array([54], dtype=np.int32)
        return engine.step(ids[None, 90:], lengths, all_logits=True)[0].copy()

    exact, close = (
        later(export_model(source, tmp_path / kv, "fp32", kv=kv)) for kv in ("fp32", "int8")
    )
    assert divergence(exact, close) < 2 * LIMITS["fp32", "int8"]


def test_attention_mass_comes_from_a_layer_that_sees_all() -> None:
    assert mass_layers((0,) * 30) == (15,)
    assert mass_layers((24, 24, 24, 24, 24, 0, 24)) == (5,)
    assert mass_layers((24,) * 4) == (2,)


@pytest.mark.parametrize("name", MODELS)
def test_quantised_stays_close_and_says_what_was_done(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, name, initializer_range=0.1)  # mild: logits follow inputs smoothly
    source = open_source(str(tmp_path), print)
    spec = find_architecture(source.config).spec(source.config, None)
    ids = random_ids(150)
    expected = transformers_logits(tmp_path, ids)
    for (precision, kv), limit in LIMITS.items():
        bundle = export_model(source, tmp_path / f"{precision}-{kv}", precision, kv=kv)
        assert divergence(expected, bundle_logits(bundle.folder, ids, [1, 60])) < limit
        steps = " ".join(bundle.manifest.quantization["steps"])
        assert ("LayerNorm" in steps) == spec.layer_norm
        assert ("residual stream and values rotated" in steps) != spec.post_norms
        if precision == "int8":
            assert ("not smoothed" in steps) != spec.gated
            assert ("head" in bundle.manifest.quantization["weights_only"]) == spec.post_norms


@pytest.mark.parametrize("name", ["llama", "gemma3", "smollm3"])
def test_a_block_written_elsewhere_has_the_keys_that_a_compaction_gives(
    name: str, tmp_path: Path
) -> None:
    """One rotary for all layers, two, or none in some."""
    write_model(tmp_path, name)
    bundle = export_model(open_source(str(tmp_path), print), tmp_path / "b", "fp32")
    engine = OnnxEngine(bundle, capacity=160)
    engine.step(random_ids(60)[None], START)
    block = engine.read(0, 40, 20)
    engine.write(0, 70, block, origin=40)
    engine.compact(0, np.r_[np.arange(10), np.arange(40, 60)])
    moved = engine.read(0, 10, 20)
    engine.write(0, 10, engine.read(0, 70, 20), origin=70)
    assert np.abs(engine.read(0, 10, 20) - moved).max() < 1e-4
    engine.write(0, 90, block, origin=90)
    assert (engine.read(0, 90, 20) == block).all()
