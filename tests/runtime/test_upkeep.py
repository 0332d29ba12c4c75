"""Coherence checks, summaries, and where every turn stands in the prompt."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.runtime.coherence import looks_coherent
from edgechat.runtime.summary import KEPT, evicted_turns, write_summary
from edgechat.runtime.text import TextCodec, Turn

Check = Callable[..., None]
Tell = Callable[..., str]


@pytest.mark.parametrize(
    ("reply", "ok"),
    [
        ([], True),
        ([5, 6, 7], True),
        (list(range(3, 103)), True),
        ([5] * 40, False),
        ([5, 6, 7, 8, 9] * 20, False),
        (list(range(3, 203)) + [5, 6, 7, 8, 9] * 40, False),
        (list(range(3, 63)) + list(range(3, 13)), True),
    ],
)
def test_a_loop_is_found(
    tiny_bundle: Path, open_chat: Callable[..., Chat], reply: list[int], ok: bool
) -> None:
    found = looks_coherent(open_chat(tiny_bundle)._conversation.cache, reply, [], 0)
    assert found.ok == ok and found.topic is None


def test_a_reply_off_the_topic_is_found(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell
) -> None:
    """The same words as asked are closer to the question than others."""
    chat = open_chat(tiny_bundle, 112, coherence_check="report")
    for number in range(8):
        tell(chat, f"question {number}", "an answer and some more")
    topics = []
    for reply in ("zzzz zzzz zzzz", "AB01 CD23 EF45"):
        tell(chat, "zzzz zzzz zzzz", reply)
        assert chat.reply is not None and chat.reply.coherence is not None
        topic = chat.reply.coherence.topic
        assert topic is not None and -1 <= topic <= 1.001
        topics.append(topic)
    assert topics[0] > topics[1]


def test_off_means_unchecked_and_report_changes_nothing(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell
) -> None:
    chat = open_chat(tiny_bundle, coherence_check="off")
    assert tell(chat, "x", "a " * 20) == "a " * 20
    assert chat.reply is not None and chat.reply.coherence is None
    chat = open_chat(tiny_bundle, coherence_check="report")
    assert tell(chat, "x", "a " * 20) == "a " * 20
    assert chat.reply is not None and chat.reply.coherence is not None
    assert not chat.reply.coherence.ok


@pytest.mark.parametrize("turns", [0, 8])
def test_retry_answers_once_more(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check, turns: int
) -> None:
    chat = open_chat(tiny_bundle, 112, coherence_check="retry")
    for number in range(turns):
        tell(chat, f"question {number}", "an answer")
    loop, good = chat._codec.encode("a " * 20), chat._codec.encode("Well said.")

    class Twice:
        ids = [*loop, 2, *good, 2]  # noqa: RUF012

        def sample(self, logits: np.ndarray, recent: object) -> int:
            return self.ids.pop(0)

    chat._sampler = Twice()  # type: ignore[assignment]
    pieces = list(chat.stream("x"))
    assert "".join(pieces) == "Well said." == chat.history[-1][1]
    assert chat.reply is not None and chat.reply.coherence is not None
    assert chat.reply.coherence.repeated == 0
    assert len(chat.history) == 2 * turns + 2
    check_cache(chat._conversation, tiny_bundle)
    chat._conversation.upkeep = dataclasses.replace(
        chat._conversation.upkeep, coherence_check="off"
    )
    assert tell(chat, "next", "ok") == "ok"
    check_cache(chat._conversation, tiny_bundle)


def test_a_cancelled_reply_is_not_tried_again(
    tiny_bundle: Path, open_chat: Callable[..., Chat]
) -> None:
    chat = open_chat(tiny_bundle, coherence_check="retry")

    class Cancels:
        said = 0

        def sample(self, logits: np.ndarray, recent: object) -> int:
            self.said += 1
            if self.said == 20:
                chat.cancel()
            return 70

    sampler = Cancels()
    chat._sampler = sampler  # type: ignore[assignment]
    reply = chat.say("x")
    assert sampler.said == 20 and reply.finish_reason == "cancelled"
    assert chat.history[-1] == ("assistant", reply.text) and len(reply.text) == 20


def test_evicted_turns_are_summarised(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check
) -> None:
    chat = open_chat(tiny_bundle, 240, "s", history_summary=40, policy="window")
    c = chat._conversation
    for number in range(14):
        tell(chat, f"question {number}", "an answer that says a bit more than that")
        check_cache(c, tiny_bundle)
        assert c.cache.fed == len(c.transcript)
    assert 0 < c.summarised < len(c.turns)
    assert 0 < len(c.summary) <= KEPT
    assert c.system_turns()[0].content == f"s\n{c.summary}"
    content = c.system_turns()[0].content
    tell(chat, "next", "ok")
    front = c.transcript.ids[: c.cache.pins[0][1]].tolist()
    assert f"system\n{content}<|im_end|>" in c.codec.tokenizer.decode(front, False)
    chat.reset()
    assert (c.summary, c.summarised) == ("", 0)


def test_a_summary_of_what_was_taken_back_goes(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell
) -> None:
    chat = open_chat(tiny_bundle, 240, "s", history_summary=40, policy="window")
    c = chat._conversation
    for number in range(14):
        tell(chat, f"question {number}", "an answer that says a bit more than that")
    assert c.summary
    summary = c.summary
    chat.edit(-1, "x")
    assert c.summary == summary
    chat.edit(0, "x")
    assert (c.summary, c.summarised) == ("", 0)


def test_a_long_reply_is_judged_at_once(tiny_bundle: Path, open_chat: Callable[..., Chat]) -> None:
    cache, reply = open_chat(tiny_bundle)._conversation.cache, list(range(30_000))
    started = time.perf_counter()
    assert looks_coherent(cache, reply, [], 0).repeated == 0
    assert time.perf_counter() - started < 2  # comparing each with each takes 20 s


def test_pinned_turns_do_not_count_as_evicted(
    tiny_bundle: Path, open_chat: Callable[..., Chat]
) -> None:
    cache = open_chat(tiny_bundle)._conversation.cache
    spans = [(0, 10), (10, 20), (20, 30)]
    cache.slots.append(12, 3)
    cache.slots.pin([(10, 20)])
    assert evicted_turns(cache, spans, 0, 1) == 1
    cache.slots.recalled[:] = True
    assert evicted_turns(cache, spans, 0, 1) == 3
    cache.pins = [(12, 15)]
    assert evicted_turns(cache, spans, 0, 1) == 1


def test_a_summary_keeps_the_conversations_tokens(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell
) -> None:
    chat = open_chat(tiny_bundle)
    tell(chat, "hello", "ok")
    c = chat._conversation
    c.prompt()
    memo = dict(c.codec._memo)
    write_summary(c.cache, c.codec, c.turns, "")
    assert memo and c.codec._memo == memo


def test_only_whole_evicted_turns_count(tiny_bundle: Path, open_chat: Callable[..., Chat]) -> None:
    cache = open_chat(tiny_bundle)._conversation.cache
    cache.slots.append(25, 30)
    spans = [(0, 10), None, (12, 20), (22, 27), (30, 40)]
    assert evicted_turns(cache, spans, 0, 18) == 3
    assert evicted_turns(cache, spans, 0, 19) == 0
    assert evicted_turns(cache, spans, 2, 8) == 3


@pytest.fixture(scope="module")
def codec(tiny_bundle: Path) -> TextCodec:
    return TextCodec(load_bundle(tiny_bundle))


WORDS = st.sampled_from(
    ["user", "s", "assistant", "system", "a", "", "é🙂", "猫", "x y", " p ", "\n"]
)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=4), WORDS, st.one_of(st.none(), WORDS))
@settings(deadline=None, max_examples=200)
def test_spans_and_starts_say_where_turns_stand(
    codec: TextCodec, pairs: list[tuple[str, str]], question: str, system: str | None
) -> None:
    turns = [] if system is None else [Turn("system", system)]
    for asked, replied in pairs:
        turns += [Turn("user", asked), Turn("assistant", replied)]
    turns.append(Turn("user", question))
    prompt = codec.prompt(turns)
    assert len(prompt.spans) == len(turns) and len(prompt.starts) == len(turns) + 1
    ids = prompt.ids.tolist()
    for turn, span, start in zip(turns, prompt.spans, prompt.starts, strict=False):
        assert span is not None
        assert codec.decode(ids[slice(*span)]).strip() == turn.content.strip()
        front = codec.tokenizer.decode(ids[start : span[0]], skip_special_tokens=False)
        assert front.strip() == f"<|im_start|>{turn.role}"
    last = codec.tokenizer.decode(ids[prompt.starts[-1] :], skip_special_tokens=False)
    assert last == "<|im_start|>assistant\n"


def test_a_session_keeps_the_templates_clock(
    tiny_bundle: Path, open_chat: Callable[..., Chat]
) -> None:
    chat = open_chat(tiny_bundle)
    fork = chat.fork()
    assert chat._codec.template is not None and fork._codec.template is not None
    assert chat._codec.template.clock == fork._codec.template.clock
    assert dataclasses.asdict(chat.settings) == dataclasses.asdict(fork.settings)
    fork.close()
