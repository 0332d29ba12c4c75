"""Turns feed only their delta and equal one full feed; replies end the way they should."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgechat.bundle import load_bundle
from edgechat.errors import CapacityError
from edgechat.runtime.conversation import Conversation
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.sampling import Sampler, SamplingSettings
from edgechat.runtime.text import TextCodec

GREEDY = SamplingSettings(temperature=0, repeat_penalty=1)


class Script:
    """A sampler that says prepared ids, then the end token."""

    def __init__(self, ids: Sequence[int], end: int = 2) -> None:
        self.ids, self.end = list(ids), end

    def sample(self, logits: np.ndarray, recent: Sequence[int]) -> int:
        return self.ids.pop(0) if self.ids else self.end


def conversation(bundle: Path, capacity: int = 250, policy: str = "window") -> Conversation:
    loaded = load_bundle(bundle)
    cache = KVCache(OnnxEngine(loaded, capacity), make_policy(policy, 4))
    return Conversation(cache, TextCodec(loaded), system="s")


def say(c: Conversation, text: str, sampler: object, n: int = 12, stop: Sequence[str] = ()) -> str:
    return "".join(c.stream(text, sampler, n, stop))  # type: ignore[arg-type]


def full_feed(bundle: Path, ids: np.ndarray) -> np.ndarray:
    cache = KVCache(OnnxEngine(load_bundle(bundle), 256), make_policy("full", 0))
    return cache.feed(ids).copy()


def test_eight_turns_of_deltas_equal_full_feeds(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    sampler = Sampler(SamplingSettings(temperature=2.0, seed=3), c.codec.size)
    seen: list[np.ndarray] = []
    feed = c.cache.feed

    def watch(*args: object, **kwargs: object) -> object:
        logits = feed(*args, **kwargs)  # type: ignore[arg-type]
        seen.append(logits.copy())
        return logits

    c.cache.feed = watch  # type: ignore[method-assign, assignment]
    for turn in range(8):
        before = len(c.transcript)
        say(c, f"q{turn}", sampler, n=4)
        assert c.last is not None
        usage = c.last.usage
        prompt = c.transcript.ids[: usage.reused_tokens + usage.fed_tokens]
        assert usage.reused_tokens == before
        assert np.abs(seen[-1] - full_feed(tiny_bundle, prompt)).max() < 1e-3


def test_ids_that_would_tokenise_differently_are_kept(tiny_bundle: Path) -> None:
    """ "a" + "b" is the one token "ab" when tokenised; generated apart it stays apart."""
    c = conversation(tiny_bundle)
    a, b, ab = (c.codec.tokenizer.token_to_id(t) for t in ("a", "b", "ab"))
    assert say(c, "hi", Script([a, b])) == "ab"
    assert c.codec.encode("ab") == [ab]
    before = len(c.transcript)
    say(c, "more", Script([]))
    assert c.last is not None
    # All that was fed is reused, and nothing but the last generated token was still to feed.
    assert c.last.usage.reused_tokens == before
    assert c.transcript.ids[before - 1] == b


def test_the_end_token_is_not_fed_twice(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    say(c, "x", Script([40]))
    say(c, "y", Script([]))
    text = c.codec.tokenizer.decode(c.transcript.ids.tolist(), skip_special_tokens=False)
    reply = c.codec.decode([40])
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
        f"{reply}<|im_end|>\n<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_reply_cut_by_length_goes_on_in_the_cache(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    say(c, "x", Script([40, 41, 42, 43]), n=2)
    assert c.last is not None and c.last.finish_reason == "length"
    say(c, "y", Script([]))
    ids = c.transcript.ids.tolist()
    assert [40, 41, 2] in [ids[i : i + 3] for i in range(len(ids))]


@pytest.mark.parametrize(("n", "text"), [(0, ""), (1, "H")])
def test_tiny_token_limits(tiny_bundle: Path, n: int, text: str) -> None:
    c = conversation(tiny_bundle)
    assert say(c, "x", Script(c.codec.encode("Hello")), n=n) == text
    assert c.last is not None and c.last.finish_reason == "length"


@pytest.mark.parametrize("text", ["", "a", "x" * 1000])
def test_messages_of_any_length_work_in_a_small_window(tiny_bundle: Path, text: str) -> None:
    c = conversation(tiny_bundle, capacity=64)
    assert say(c, text, Script(c.codec.encode("Hello"))) == "Hello"
    assert c.last is not None
    usage = c.last.usage
    assert usage.evicted_tokens == len(c.transcript) - c.cache.slots.length


def test_stop_strings_never_show_and_leave_a_clean_transcript(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    pieces = list(c.stream("x", Script(c.codec.encode("Hello END more")), 50, ["END"]))  # type: ignore[arg-type]
    assert "".join(pieces) == "Hello "
    assert c.last is not None and c.last.finish_reason == "stop"
    say(c, "y", Script([]))
    text = c.codec.tokenizer.decode(c.transcript.ids.tolist(), skip_special_tokens=False)
    assert "assistant\nHello <|im_end|>" in text


def test_a_stop_string_that_only_begins_is_shown_in_the_end(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    assert say(c, "x", Script(c.codec.encode("The EN")), stop=["END"]) == "The EN"


def test_closing_the_stream_keeps_what_came(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    stream = c.stream("x", Script(c.codec.encode("Hello")), 50)  # type: ignore[arg-type]
    assert next(stream) + next(stream) == "He"
    stream.close()
    assert c.last is not None
    assert (c.last.text, c.last.finish_reason) == ("He", "cancelled")
    say(c, "y", Script([]))
    text = c.codec.tokenizer.decode(c.transcript.ids.tolist(), skip_special_tokens=False)
    assert "assistant\nHe<|im_end|>" in text


def test_cancel_ends_the_reply(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    for piece in c.stream("x", Script(c.codec.encode("Hello")), 50):  # type: ignore[arg-type]
        if piece == "l":
            c.cancel()
    assert c.last is not None
    assert (c.last.text, c.last.finish_reason) == ("Hel", "cancelled")


def test_full_policy_refuses_what_cannot_fit_and_goes_on(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle, capacity=100, policy="full")
    with pytest.raises(CapacityError, match="use the policy 'key'"):
        say(c, "x" * 200, Script([]))
    assert c.turns == []
    assert say(c, "x", Script(c.codec.encode("Hello"))) == "Hello"


def test_full_policy_ends_generation_at_the_capacity(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle, capacity=100, policy="full")
    say(c, "x", Script([40] * 500), n=500)
    assert c.last is not None and c.last.finish_reason == "length"
    assert c.cache.slots.length == 100


def test_reset_keeps_the_system_prompt_cached(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    say(c, "one", Script([40]))
    c.reset()
    say(c, "two", Script([40]))
    assert c.last is not None
    shared = len(c.codec.encode("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n"))
    assert c.last.usage.reused_tokens == shared


def test_a_changed_system_prompt_reads_the_history_again(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    say(c, "one", Script([40]))
    c.system = "t"
    say(c, "two", Script([40]))
    assert c.last is not None
    assert c.last.usage.reused_tokens == len(c.codec.encode("<|im_start|>system\n"))


def test_ids_without_a_token_are_never_drawn(tiny_bundle: Path) -> None:
    """The embedding has 320 rows, the tokenizer 260 tokens."""
    c = conversation(tiny_bundle)
    sampler = Sampler(
        SamplingSettings(temperature=50, top_k=0, top_p=1, min_p=0, seed=0), c.codec.size
    )
    say(c, "x", sampler, n=100)
    assert c.transcript.ids.max() < c.codec.size


def cached_text(c: Conversation) -> str:
    ids = c.transcript.ids
    # The transcript skips what was never fed again, so look the slots up by what they hold.
    return c.codec.tokenizer.decode(
        [int(ids[i]) for i in c.cache.slots.index if i < len(ids)], skip_special_tokens=False
    )


def pinned_front(c: Conversation) -> str:
    (start, stop), *_ = c.cache.pins
    assert start == 0 and c.cache.slots.pinned[:stop].all()
    return c.codec.tokenizer.decode(c.transcript.ids[:stop].tolist(), skip_special_tokens=False)


def test_the_system_prompt_outlives_evictions_and_resets(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle, capacity=80)
    c.system = "You are a cat."
    for turn in range(8):
        say(c, f"question {turn}", Script(c.codec.encode("an answer")))
    assert c.cache.evicted > 100
    assert cached_text(c).startswith("<|im_start|>system\nYou are a cat.<|im_end|>\n")
    c.reset()
    say(c, "new", Script([40]))
    assert c.last is not None
    assert c.last.usage.reused_tokens == c.codec.system_tokens(c.system_turns())


def test_a_system_prompt_that_fills_the_cache_is_refused(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle, capacity=64)
    c.system = "very long " * 10
    with pytest.raises(CapacityError, match="system prompt"):
        say(c, "x", Script([40]))


def test_old_history_is_not_read_again_only_to_be_dropped(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle, capacity=80)
    for turn in range(20):
        say(c, f"question {turn}", Script(c.codec.encode("an answer")))
    c.system = "another"
    say(c, "x", Script([40]))
    assert c.last is not None
    assert c.last.usage.fed_tokens < 2 * 80
    assert c.cache.fed == len(c.transcript)
    say(c, "y", Script([40]))  # and the next turn is a delta again
    assert c.last.usage.fed_tokens < 60


def test_a_new_message_ends_an_unfinished_reply(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    first = c.stream("one", Script(c.codec.encode("Hello")), 50)  # type: ignore[arg-type]
    next(first)
    say(c, "two", Script(c.codec.encode("Ho")))
    assert [t.content for t in c.turns] == ["one", "H", "two", "Ho"]
    assert list(first) == []


def test_cancelling_the_prompt_adds_no_turn(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle, capacity=64)
    stream = c.stream("x" * 1000, Script([40]), 50)  # type: ignore[arg-type]
    c.cancel()
    assert list(stream) == []
    assert c.last is not None and c.last.finish_reason == "cancelled"
    assert c.turns == []
    assert c.last.usage.fed_tokens < 200
    assert say(c, "x", Script(c.codec.encode("Ho"))) == "Ho"


def test_after_a_reset_a_long_message_is_read_to_the_end(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle, capacity=80)
    for turn in range(10):
        say(c, f"question {turn}", Script(c.codec.encode("an answer")))
    c.reset()
    say(c, "y" * 300, Script([40]))
    assert c.last is not None
    assert c.last.usage.fed_tokens >= 300


def test_no_system_prompt_and_an_empty_one_are_two_things(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    c.system = ""
    say(c, "x", Script([40]))
    empty = pinned_front(c)
    c.system = None
    say(c, "x", Script([40]))
    assert empty == "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n"
    assert pinned_front(c) == "<|im_start|>user\n"


def test_what_a_stop_string_held_back_is_not_remembered(tiny_bundle: Path) -> None:
    c = conversation(tiny_bundle)
    stream = c.stream("x", Script(c.codec.encode("Hi ENough")), 50, ["END"])  # type: ignore[arg-type]
    assert "".join(next(stream) for _ in range(3)) == "Hi "
    stream.close()
    assert c.codec.decode(c.turns[-1].ids or []) == c.turns[-1].content == "Hi "
