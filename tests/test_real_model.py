"""SmolLM2-135M-Instruct: quality of int8 and of the bounded cache on real text."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgechat import Chat, SamplingSettings
from edgechat.bundle import load_bundle
from edgechat.evaluate import Reader, evaluate, read_ids
from edgechat.export.quantize.calibration import evaluation_text
from edgechat.settings import Settings

pytestmark = pytest.mark.slow


def test_int8_predicts_as_well_as_fp32(smollm2_fp32: Path, smollm2_int8: Path) -> None:
    fp32, int8 = load_bundle(smollm2_fp32), load_bundle(smollm2_int8)
    ids = read_ids(fp32, evaluation_text(), 1500)
    settings = Settings(policy="full")
    score = evaluate(Reader(int8, settings, 1500), ids, reference=Reader(fp32, settings, 1500))
    assert score.reference_perplexity is not None and score.top1 is not None
    assert score.perplexity < 1.02 * score.reference_perplexity
    assert score.top1 > 0.92


def test_it_knows_paris_and_reuses_the_turn_before(smollm2_int8: Path) -> None:
    """Asked so that the float model is sure: to "What is the capital of France?" it begins with
    "The" or, nearly as likely (0.152 and 0.140), goes on in a kind of French."""
    greedy = SamplingSettings(temperature=0, repeat_penalty=1)
    with Chat.open(smollm2_int8, sampling=greedy) as chat:
        assert "Paris" in chat.say("Please tell me the capital of France.", max_tokens=40).text
        reply = chat.say("Thank you!", max_tokens=20)
        assert reply.text
        assert reply.usage.reused_tokens > reply.usage.fed_tokens


def test_sinks_and_window_hold_the_perplexity(smollm2_fp32: Path, shared_text: str) -> None:
    """StreamingLLM's finding: a window is nearly enough, but never without the first tokens."""
    bundle = load_bundle(smollm2_fp32)
    ids = read_ids(bundle, shared_text, 3000)

    def perplexity(policy: str, sinks: int, capacity: int) -> float:
        reader = Reader(bundle, Settings(policy=policy, sinks=sinks), capacity)
        return evaluate(reader, ids).second_half

    full = perplexity("full", 4, 3000)
    assert perplexity("window", 4, 1028) < 1.1 * full
    assert perplexity("window", 0, 1024) > 1.3 * full
