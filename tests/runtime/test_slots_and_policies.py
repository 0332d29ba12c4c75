"""Policies are pure functions of the slots: what must stay stays, within the budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.errors import CapacityError
from edgechat.runtime.importance import (
    importance,
    select_key_tokens,
    select_spans,
    span_sum,
)
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.slots import SlotTable


@st.composite
def tables(draw: st.DrawFn) -> SlotTable:
    """Slots of a transcript with gaps, some pinned, of any worth."""
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 5]), min_size=1, max_size=60))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    slots = SlotTable(len(steps))
    slots.append(0, len(steps))
    slots.index[:] = slots.used[:] = np.cumsum(steps) - 1
    slots.surprisal[:] = random.exponential(2, len(steps))
    slots.mass[:] = random.exponential(0.5, len(steps))
    slots.pinned[:] = random.random(len(steps)) < draw(st.sampled_from([0, 0.1, 0.5]))
    return slots


@given(tables(), st.integers(0, 70), st.integers(0, 6), st.integers(0, 40), st.booleans())
@settings(deadline=None)
def test_what_must_stay_stays_within_the_budget(
    slots: SlotTable, budget: int, sinks: int, keys: int, key: bool
) -> None:
    policy = make_policy("key" if key else "window", sinks, keys)
    before = {name: getattr(slots, name).copy() for name in SlotTable.COLUMNS}
    kept = policy(slots, budget)
    assert all((getattr(slots, name) == old).all() for name, old in before.items())
    assert (np.diff(kept) > 0).all() and ((kept >= 0) & (kept < slots.length)).all()
    must = set(range(min(sinks, slots.length))) | set(np.flatnonzero(slots.pinned))
    assert must <= set(kept.tolist())
    assert len(kept) <= max(budget, len(must))
    if budget > len(must):
        assert slots.length - 1 in kept, "the newest was dropped"
    if budget >= slots.length and not key:
        assert len(kept) == slots.length


@given(tables(), st.integers(0, 30), st.integers(0, 3), st.integers(0, 9))
@settings(deadline=None)
def test_key_spans_are_whole(slots: SlotTable, count: int, behind: int, ahead: int) -> None:
    index, weights = slots.index, slots.surprisal
    chosen = select_spans(weights, index, count, behind, ahead)
    assert chosen.sum() <= count
    apart = index[None, :] - index[:, None]
    spans = (apart >= -behind) & (apart <= ahead)  # of each center, [n, n]
    whole = [span for span in spans if chosen[span].all()]
    for place in np.flatnonzero(chosen):  # each lies in a span that was taken as a whole
        assert any(span[place] for span in whole)


def test_key_tokens_are_not_alone_unless_the_transcript_isolates_them() -> None:
    weights = np.random.default_rng(0).exponential(1, 200).astype(np.float32)
    chosen = np.flatnonzero(select_spans(weights, np.arange(200), 60))
    assert all({place - 1, place + 1} & set(chosen.tolist()) for place in chosen.tolist())
    apart = np.arange(200) * 20
    assert select_spans(weights, apart, 5).sum() == 5


def test_the_heaviest_spans_are_the_ones() -> None:
    weights = np.full(30, 0.1, np.float32)
    weights[[7, 20]] = 5, 9
    chosen = select_spans(weights, np.arange(30), 5, 2, 2)
    assert np.flatnonzero(chosen).tolist() == [18, 19, 20, 21, 22]
    chosen = select_spans(weights, np.arange(30), 10, 2, 2)
    assert np.flatnonzero(chosen).tolist() == [5, 6, 7, 8, 9, 18, 19, 20, 21, 22]
    chosen = select_spans(weights, np.arange(30), 6, 1, 4)
    assert np.flatnonzero(chosen).tolist() == [19, 20, 21, 22, 23, 24]


@given(tables(), st.integers(1, 4))
@settings(deadline=None)
def test_spans_add_true_neighbours_only(slots: SlotTable, neighbours: int) -> None:
    index, values = slots.index, slots.surprisal
    near = np.abs(index[:, None] - index[None, :]) <= neighbours
    assert np.allclose(span_sum(values, index, neighbours), near @ values, rtol=1e-4)


def test_importance_halves_with_age_and_grows_with_worth() -> None:
    one, none, index = np.ones(1, np.float32), np.zeros(1, np.float32), np.arange(1)
    now = importance(one, none, index, np.array([0]), half_life=100)
    assert now == pytest.approx(1)
    assert importance(one, none, index, np.array([100]), half_life=100) == pytest.approx(0.5)
    assert importance(one, none, index, np.array([300]), half_life=100) == pytest.approx(0.125)
    assert importance(one, one, index, np.array([0])) > now
    assert importance(2 * one, none, index, np.array([0])) > now


def test_key_tokens_are_those_above_a_multiple_of_the_mean() -> None:
    weights = np.array([1, 2, 3, 6], np.float32)
    assert select_key_tokens(weights, 1.0).tolist() == [False, False, True, True]
    assert select_key_tokens(weights, 2.0).tolist() == [False, False, False, True]
    assert select_key_tokens(weights[:0], 1.0).tolist() == []


def test_surprising_tokens_outlive_the_window(tiny_bundle: Path) -> None:
    """The key policy keeps more surprisal of the past than the window keeps at all."""
    ids = np.random.default_rng(0).integers(3, 259, size=600)
    engine = OnnxEngine(load_bundle(tiny_bundle), 64, threads=1, importance=True)
    cache = KVCache(engine, make_policy("key", 4, 24))
    cache.feed(ids)
    old = cache.slots.index < len(ids) - 64
    assert 4 < old.sum() <= 4 + 24
    assert cache.slots.surprisal[old][4:].mean() > cache.slots.surprisal[~old].mean()


def test_pins_that_do_not_fit_are_refused_and_change_nothing(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Callable[..., str], check_cache: Any
) -> None:
    chat = open_chat(tiny_bundle, 96)
    tell(chat, "hello")
    chat.pin("short")
    with pytest.raises(CapacityError, match=r"pinned take .* more than half of the KV cache of 96"):
        chat.pin("a very long text " * 5)
    assert chat.pins == ["short"]
    assert tell(chat, "and on") == "ok"
    check_cache(chat._conversation, tiny_bundle)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_last_questions_are_pinned_while_they_fit(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Callable[..., str], count: int
) -> None:
    chat = open_chat(tiny_bundle, 160, pinned_questions=count)
    for number in range(4):
        tell(chat, f"question {number}", "an answer")
    c = chat._conversation
    pinned = [c.codec.decode(c.transcript.ids[a:b].tolist()) for a, b in c.cache.pins[1:]]
    assert pinned == [f"question {n}" for n in (3, 2, 1, 0)][:count]
    for _ in range(6):
        tell(chat, "x", "much more " * 10)
    start, stop = c.cache.pins[0]
    assert set(range(start, stop)) <= set(c.cache.slots.index.tolist())
    tell(chat, "long " * 10)  # 50 of 160 are more than a quarter
    assert len(c.cache.pins) == 1
