"""Edits, undo, regenerate, pins: the model reads what is new, and the rest stays right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.chat import Chat
from edgechat.errors import CapacityError, SettingsError
from edgechat.runtime.transcript import Transcript

Check = Callable[..., None]
Tell = Callable[..., str]


def rendered(chat: Chat) -> str:
    ids = chat._conversation.transcript.ids.tolist()
    return chat._codec.tokenizer.decode(ids, skip_special_tokens=False)


def archived_text(chat: Chat) -> str:
    """What the archive holds, with a gap where it holds nothing."""
    c = chat._conversation
    assert c.cache.memory is not None
    archive, texts = c.cache.memory.archive, {}
    for record in np.flatnonzero(archive.counts):
        start, count = int(archive.starts[record]), int(archive.counts[record])
        ids = c.transcript.ids[start : start + count].tolist()
        texts[start] = c.codec.tokenizer.decode(ids, skip_special_tokens=False)
    return "|".join(texts[start] for start in sorted(texts))


def usage(chat: Chat) -> tuple[int, int]:
    assert chat.usage is not None
    return chat.usage.fed_tokens, chat.usage.reused_tokens


@pytest.fixture
def long_chat(tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell) -> Callable[..., Chat]:
    """``long_chat(threshold, capacity, turns)``: told about numbers."""

    def make(threshold: float = 0.1, capacity: int = 240, turns: int = 4, **given: object) -> Chat:
        chat = open_chat(tiny_bundle, capacity, delta_threshold=threshold, recall_blocks=1, **given)
        for number in range(turns):
            tell(chat, f"question {number}", f"answer {number}!")
        return chat

    return make


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
@pytest.mark.parametrize("text", ["question 7", "longer 123", "short"])
def test_a_small_change_is_spliced(
    long_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Check,
    tiny_bundle: Path,
    turn: int,
    text: str,
) -> None:
    chat = long_chat()
    index = len(chat._conversation.transcript)
    old = chat.history[turn][1]
    chat.edit(turn, text)
    assert chat.history[turn][1] == text
    tell(chat, "next", "ok")
    assert f"\n{text}<|im_end|>" in rendered(chat) and old not in rendered(chat)
    check_cache(chat._conversation, tiny_bundle)
    fed, reused = usage(chat)
    delta = len("<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n")
    assert fed <= len(text) + delta  # template marks are one token each: this is generous
    assert fed + reused == len(chat._conversation.transcript) - len("ok")
    assert reused >= index - len(old)


@pytest.mark.parametrize(("threshold", "text"), [(0.0, "question 7"), (0.1, "other " * 8)])
def test_a_large_change_is_read_with_all_behind_it(
    long_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Check,
    tiny_bundle: Path,
    threshold: float,
    text: str,
) -> None:
    chat = long_chat(threshold)
    spans = chat._conversation.prompt().spans
    chat.edit(2, text)
    tell(chat, "next", "ok")
    fed, reused = usage(chat)
    assert spans[3] is not None
    assert spans[3][0] <= reused <= spans[3][1]  # up to the change
    if len(chat._conversation.transcript) < 240:
        assert fed + reused == len(chat._conversation.transcript) - len("ok")
    check_cache(chat._conversation, tiny_bundle)


def test_a_splice_without_a_change_of_meaning_keeps_the_logits(
    long_chat: Callable[..., Chat], tell: Tell, open_chat: Callable[..., Chat], tiny_bundle: Path
) -> None:
    """A re-fed edit gives the logits of a chat that heard nothing else; a spliced one is close in
    layer 0 only (see check_cache)."""
    chat = long_chat(0.0)
    chat.edit(2, "changed")
    tell(chat, "next", "ok")
    fresh = open_chat(tiny_bundle, 240)
    for number in range(4):
        tell(fresh, "changed" if number == 1 else f"question {number}", f"answer {number}!")
    tell(fresh, "next", "ok")
    one, other = chat._conversation.cache.logits, fresh._conversation.cache.logits
    assert one is not None and other is not None
    assert np.abs(one - other).max() < 1e-3


@pytest.mark.parametrize("threshold", [0.0, 0.2])
@pytest.mark.parametrize("turn", [0, 3])
def test_an_evicted_turn_is_changed_in_the_archive_too(
    long_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Check,
    tiny_bundle: Path,
    threshold: float,
    turn: int,
) -> None:
    chat = long_chat(threshold, 112, 14)
    old = chat.history[turn][1]
    assert old in archived_text(chat)
    chat.edit(turn, "#changed#")
    tell(chat, "next", "ok")
    check_cache(chat._conversation, tiny_bundle)
    for number in range(4):
        tell(chat, f"more {number}", "of this and that, and of something else")
        check_cache(chat._conversation, tiny_bundle)
    text = archived_text(chat)
    assert old + "<" not in text and old not in rendered(chat)
    assert "#changed#" in text.replace("|", "")
    for number in range(3, 12):
        assert f"answer {number}!" in text.replace("|", "")


def test_the_last_turns_can_be_edited(
    long_chat: Callable[..., Chat], tell: Tell, check_cache: Check, tiny_bundle: Path
) -> None:
    chat = long_chat(0.5)
    chat.edit(-1, "I never said that")
    chat.edit(-2, "what?")
    tell(chat, "next", "ok")
    assert "what?<|im_end|>\n<|im_start|>assistant\nI never said that<|im_end|>" in rendered(chat)
    check_cache(chat._conversation, tiny_bundle)


def test_a_long_edit_of_the_last_reply_is_read_to_its_end(
    long_chat: Callable[..., Chat], tell: Tell, check_cache: Check, tiny_bundle: Path
) -> None:
    chat = long_chat(0.1, 96, 10)
    chat.edit(-1, "0123456789" * 40)
    tell(chat, "next", "ok")
    assert usage(chat)[0] >= 400
    check_cache(chat._conversation, tiny_bundle)


def test_turns_that_do_not_exist_are_refused(long_chat: Callable[..., Chat]) -> None:
    chat = long_chat(turns=1)
    for turn in (2, -3, 100):
        with pytest.raises(SettingsError, match="the conversation has 2"):
            chat.edit(turn, "x")


@pytest.mark.parametrize("capacity", [240, 96])
def test_undo_to_the_beginning(
    long_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Check,
    tiny_bundle: Path,
    capacity: int,
) -> None:
    chat = long_chat(0.1, capacity, 8)
    for number in range(7, -1, -1):
        assert chat.undo() == f"question {number}"
        if number in (6, 2):
            tell(chat, "instead", "ok")
            check_cache(chat._conversation, tiny_bundle)
            assert chat.undo() == "instead"
    assert chat.history == []
    with pytest.raises(SettingsError, match="nothing to undo"):
        chat.undo()
    tell(chat, "anew", "ok")
    assert rendered(chat).count("user") == 1
    check_cache(chat._conversation, tiny_bundle)


def test_after_undo_a_long_message_is_read_to_the_end(
    long_chat: Callable[..., Chat], tell: Tell, check_cache: Check, tiny_bundle: Path
) -> None:
    chat = long_chat(0.1, 96, 3)
    tell(chat, "x" * 400, "ok")
    chat.undo()
    tell(chat, "y" * 400, "ok")
    assert usage(chat)[0] >= 400
    check_cache(chat._conversation, tiny_bundle)


@pytest.mark.parametrize("capacity", [240, 96])
def test_regenerate_feeds_one_token(
    long_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Check,
    tiny_bundle: Path,
    capacity: int,
) -> None:
    chat = long_chat(0.1, capacity, 6)
    before = len(chat._conversation.prompt().ids)
    for reply in ("one", "two", "another reply"):
        assert tell(chat, None, reply) == reply
        assert usage(chat)[0] == 1
        check_cache(chat._conversation, tiny_bundle)
    assert chat.history[-2:] == [("user", "question 5"), ("assistant", "another reply")]
    assert len(chat._conversation.prompt().ids) == before + len("another reply") - len("answer 5!")


def test_a_failed_regenerate_loses_nothing(
    long_chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = long_chat(turns=2)
    before = chat.history

    def fail(*args: object) -> None:
        raise SettingsError("no")

    monkeypatch.setattr(chat._conversation, "_feed", fail)
    with pytest.raises(SettingsError):
        chat.regenerate()
    assert chat.history == before


@pytest.mark.parametrize("threshold", [0.0, 0.3])
@pytest.mark.parametrize("capacity", [240, 128])
def test_pins_change_the_system_prompt_in_a_long_conversation(
    long_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Check,
    tiny_bundle: Path,
    threshold: float,
    capacity: int,
) -> None:
    chat = long_chat(threshold, capacity, 8)
    c = chat._conversation
    for change in ("pin", "unpin", "system", "none"):
        if change == "pin":
            chat.pin("the key is 7")
        elif change == "unpin":
            chat.unpin("the key is 7")
        else:
            chat.system = "You are a cat." if change == "system" else None
        tell(chat, "next", "ok")
        check_cache(c, tiny_bundle)
        front = c.cache.slots.index[: c.cache.pins[0][1]]
        assert front.tolist() == list(range(c.cache.pins[0][1]))
        seen = c.codec.decode(c.transcript.ids[front].tolist())
        assert ("the key is 7" in seen) == (change == "pin")
        assert ("You are a cat." in seen) == (change == "system")
        if threshold and capacity == 240:
            assert usage(chat)[0] < 80
        tell(chat, "and on", "ok")
        assert usage(chat)[0] < 60
    with pytest.raises(SettingsError, match="is not pinned"):
        chat.unpin("the key is 7")


def test_cancelling_while_an_edit_is_read_again_leaves_no_stale_archive(
    long_chat: Callable[..., Chat], tell: Tell, check_cache: Check, tiny_bundle: Path
) -> None:
    chat = long_chat(0.0, 96, 12)
    chat.edit(2, "changed " * 20)
    stream = chat.stream("next")
    chat.cancel()
    assert list(stream) == []
    check_cache(chat._conversation, tiny_bundle)
    chat.edit(4, "also changed")
    tell(chat, "next", "ok")
    check_cache(chat._conversation, tiny_bundle)


def test_edit_takes_effect_after_a_reset_only_on_what_is_left(
    long_chat: Callable[..., Chat], tell: Tell, check_cache: Check, tiny_bundle: Path
) -> None:
    chat = long_chat(0.1, 96, 8)
    chat.edit(0, "x")
    chat.reset()
    tell(chat, "new", "ok")
    assert chat.history == [("user", "new"), ("assistant", "ok")]
    check_cache(chat._conversation, tiny_bundle)
    assert archived_text(chat) == ""


IDS = st.lists(st.integers(0, 3), max_size=60)


@given(IDS, IDS, IDS, IDS, st.lists(st.integers(0, 3), min_size=17, max_size=80))
@settings(deadline=None, max_examples=300)
def test_find_edit_tells_a_change_that_makes_one_of_the_other(
    head: list[int], old: list[int], new: list[int], more: list[int], tail: list[int]
) -> None:
    transcript = Transcript(np.array(head + old + tail, dtype=np.int64))
    other = np.array(head + new + tail + more, dtype=np.int64)
    edit = transcript.find_edit(other)
    if edit is None:
        assert transcript.common_prefix(other) + len(tail) >= len(transcript) - len(old)
        return
    start, stop, new_stop = edit
    assert start <= min(stop, new_stop)
    transcript.splice(start, stop, other[start:new_stop])
    assert (transcript.ids == other[: len(transcript)]).all()


def test_without_eviction_edits_are_read_again_and_what_does_not_fit_is_refused(
    long_chat: Callable[..., Chat], tell: Tell, check_cache: Check, tiny_bundle: Path
) -> None:
    chat = long_chat(0.5, 250, 4, policy="full")
    chat.edit(2, "changed")
    tell(chat, "next", "ok")
    assert "changed" in rendered(chat) and usage(chat)[0] > 80
    check_cache(chat._conversation, tiny_bundle)
    chat.edit(0, "x" * 200)
    with pytest.raises(CapacityError, match="evicts nothing"):
        tell(chat, "more", "ok")
    check_cache(chat._conversation, tiny_bundle)
    chat.edit(0, "y")
    tell(chat, "more", "ok")
    assert chat.history[0] == ("user", "y") and chat.history[-1] == ("assistant", "ok")
    check_cache(chat._conversation, tiny_bundle)
