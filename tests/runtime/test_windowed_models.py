"""Models with sliding windows, briefly trained: as perplexed as in transformers, for ever.

While nothing was evicted transformers itself is the reference. Later the cache has let go of tokens
that others had read, and the rest moved together; then it is transformers with an attention that
sees, step by step, the tokens the slots hold, turned to the places they have.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import transformers_logits, write_model
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, AutoModelForCausalLM

from edgechat.bundle import Bundle
from edgechat.export import export_model, open_source
from edgechat.export.quantize.calibration import calibration_text, evaluation_text
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.text import TextCodec

WINDOW = 24
CAPACITY, LENGTH = 3 * WINDOW, 480
SINGLE = 40  # tokens that are fed one by one, as in a conversation
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS: dict[str, dict[str, Any]] = {
    "mistral": {},
    "gemma2": {},
    "gemma3": {"layer_types": SLIDING, "num_hidden_layers": 3},
    "phi3": {},
    "qwen2 with windows": {},
}
WINDOWS_ONLY = ("mistral", "phi3")
STEPS, BATCH, SPAN = 120, 8, 96


@dataclass
class Step:
    """``slots``: the transcript's tokens that the cache held, the ``new`` last ones just fed."""

    slots: np.ndarray
    new: int


def train(folder: Path, ids: np.ndarray) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    text, draw = torch.from_numpy(ids), torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        starts = torch.randint(0, len(ids) - SPAN, (BATCH, 1), generator=draw)
        batch = text[starts + torch.arange(SPAN)]
        logits = model(batch, use_cache=False).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def read(bundle: Bundle, policy: str, ids: np.ndarray) -> tuple[np.ndarray, list[Step]]:
    """Logits of every token, and the steps they came from."""
    engine = OnnxEngine(bundle, CAPACITY, importance=policy == "key")
    cache = KVCache(engine, make_policy(policy, sinks=4, keys=20))
    many, single = np.split(ids, [len(ids) - SINGLE])
    logits, steps = [], []
    for piece in [*np.split(many, [CAPACITY, CAPACITY + 5]), *np.split(single, SINGLE)]:
        for chunk in cache.feed_chunks(piece, all_logits=True):
            logits.append(chunk.copy())
            steps.append(Step(cache.slots.index.copy(), len(chunk)))
    assert cache.evicted > 3 * CAPACITY
    return np.concatenate(logits), steps


def expected_logits(
    folder: Path, ids: np.ndarray, steps: list[Step], windows: bool = True, turned: bool = True
) -> np.ndarray:
    """[T, V] of transformers whose attention sees the slots of each step, at their places.

    Keys reach it unrotated, for all tokens are said to be at position 0, and are rotated by
    transformers' functions to every place they ever have: nothing is moved. ``windows`` and
    ``turned``: with windows, and with slots for positions; without, the error that would be.
    """

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        apply = sys.modules[type(module).__module__].apply_rotary_pos_emb
        kinds = [module.config.layer_types[module.layer_idx]] if gemma3 else []

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            rotated: torch.Tensor = apply(x, x, *rotary(x, positions[None], *kinds))[0]
            return rotated

        key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
        parts = []
        for step in steps:
            slots = torch.from_numpy(step.slots)
            places = torch.arange(len(slots)) if turned else slots
            fed, place = slots[-step.new :], places[-step.new :]
            scores = rotate(query[:, :, fed], place) @ rotate(key[:, :, slots], places).mT
            scores = scores * scaling
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            distance = torch.arange(len(slots))[-step.new :, None] - torch.arange(len(slots))
            seen = distance >= 0
            if windows and sliding_window is not None:
                seen &= distance < sliding_window
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            parts.append(weights @ value[:, :, slots])
        return torch.cat(parts, dim=2).transpose(1, 2), None

    AttentionInterface.register("slots", attend)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="slots").eval()
    rotary, gemma3 = model.model.rotary_emb, model.config.model_type == "gemma3_text"
    tokens = torch.from_numpy(ids)[None]
    with torch.no_grad():
        result: np.ndarray = model(tokens, position_ids=torch.zeros_like(tokens)).logits[0].numpy()
    return result


def perplexity(logits: np.ndarray, ids: np.ndarray) -> float:
    """Of all of ``ids`` but the first."""
    return float(cross_entropy(torch.from_numpy(logits[:-1]), torch.from_numpy(ids[1:])).exp())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", MODELS)
def test_perplexity_is_that_of_transformers_before_and_after_compactions(
    name: str, tmp_path: Path
) -> None:
    changes = {"sliding_window": WINDOW, **MODELS[name]}
    write_model(tmp_path, name, initializer_range=0.05, **changes)
    codec = TextCodec(export_model(open_source(str(tmp_path), print), tmp_path / "b", "fp32"))
    train(tmp_path, codec.encode_text(calibration_text(None)))
    source = open_source(str(tmp_path), print)
    fp32, int8 = (export_model(source, tmp_path / p, p) for p in ("fp32", "int8"))
    ids = codec.encode_text(evaluation_text())[:LENGTH]
    original = transformers_logits(tmp_path, ids[:CAPACITY])
    assert perplexity(original, ids[:CAPACITY]) < 20  # it has learned something
    for policy in ("window", "key"):
        logits, steps = read(fp32, policy, ids)
        assert np.abs(logits[:CAPACITY] - original).max() < 1e-3
        expected = expected_logits(tmp_path, ids, steps)
        assert np.abs(logits - expected).max() < 1e-3
        for part in (slice(CAPACITY), slice(CAPACITY, None)):
            wanted = perplexity(expected[part], ids[part])
            assert perplexity(logits[part], ids[part]) == pytest.approx(wanted, rel=1e-4)
        wrong = expected_logits(tmp_path, ids, steps, windows=False)
        assert perplexity(wrong[part], ids[part]) > 1.01 * wanted
        if name not in WINDOWS_ONLY:  # whose windows hold neither sinks nor key tokens
            wrong = expected_logits(tmp_path, ids, steps, turned=False)
            assert np.abs(wrong - expected)[CAPACITY:].max() > 0.05
    logits, steps = read(int8, "window", ids)
    wanted = perplexity(expected_logits(tmp_path, ids, steps)[part], ids[part])
    assert perplexity(logits[part], ids[part]) == pytest.approx(wanted, rel=0.01)
