"""The public API keeps its promises and refuses nonsense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgechat import Chat, EdgechatError
from edgechat.errors import CapacityError, SettingsError


def test_breaking_off_keeps_what_came(tiny_bundle: Path) -> None:
    with Chat.open(tiny_bundle) as chat:
        for _ in chat.stream("hi", max_tokens=50):
            break
        assert chat.reply is not None
        assert chat.reply.finish_reason == "cancelled"
        assert [role for role, _ in chat.history] == ["user", "assistant"]
        assert chat.usage is not None and chat.usage.reply_tokens >= 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"text": 5}, TypeError),
        ({"text": None}, TypeError),
        ({"text": "\ud800"}, SettingsError),
        ({"text": "x", "stop": "END"}, TypeError),
        ({"text": "x", "stop": [1]}, TypeError),
        ({"text": "x", "max_tokens": -1}, SettingsError),
        ({"text": "x", "max_tokens": 2.5}, SettingsError),
    ],
)
def test_nonsense_is_refused_and_leaves_no_turn(
    arguments: dict[str, Any], error: type[Exception], tiny_bundle: Path
) -> None:
    with Chat.open(tiny_bundle) as chat:
        with pytest.raises(error):
            chat.say(**arguments)
        assert chat.history == []
        assert chat.say("x", max_tokens=3).usage.reply_tokens <= 3


def test_a_closed_chat_says_so(tiny_bundle: Path) -> None:
    chat = Chat.open(tiny_bundle)
    stream = chat.stream("x", max_tokens=50)
    next(stream)
    chat.close()
    assert list(stream) == []
    calls: list[Callable[[], object]] = [
        lambda: chat.say("x"),
        chat.stream_again,
        chat.regenerate,
        lambda: chat.edit(0, "x"),
        chat.undo,
        lambda: chat.pin("x"),
        lambda: chat.unpin("x"),
        chat.cache_map,
        chat.reset,
    ]
    for call in calls:
        with pytest.raises(EdgechatError, match="closed"):
            call()


class Fails:
    """A feed that goes wrong: raises, or is cancelled."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def __call__(self, *_: object) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [CapacityError("full"), None])
@pytest.mark.parametrize("is_open", [False, True])
def test_the_old_answer_stays_when_no_new_one_comes(
    error: Exception | None,
    is_open: bool,
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Chat.open(tiny_bundle) as chat:
        chat.say("first", max_tokens=3)
        stream = chat.stream("second", max_tokens=50)
        for piece in stream:
            assert piece
            if is_open:
                break
        before = chat.history if not is_open else None
        c = chat._conversation
        c.summary, c.summarised = "a summary", 3
        with monkeypatch.context() as patch:
            patch.setattr(c, "_feed", Fails(error))
            if error is None:
                assert chat.regenerate().finish_reason == "cancelled"
                assert list(chat.stream_again()) == []
            else:
                for again in (chat.regenerate, lambda: list(chat.stream_again())):
                    with pytest.raises(CapacityError):
                        again()
                assert chat.reply is not None
        assert [text for role, text in chat.history if role == "user"] == ["first", "second"]
        assert len(chat.history) == 4 and before in (None, chat.history)
        assert (c.summary, c.summarised) == ("a summary", 3)
        with pytest.raises(SettingsError):
            chat.regenerate(max_tokens=-1)
        assert len(chat.history) == 4
        chat.regenerate(max_tokens=2)
        assert len(chat.history) == 4 and (c.summary, c.summarised) == ("", 0)


def test_another_answer_comes_piece_by_piece(tiny_bundle: Path) -> None:
    with Chat.open(tiny_bundle) as chat:
        with pytest.raises(SettingsError, match="nothing to undo"):
            list(chat.stream_again())
        old = chat.say("x", max_tokens=20)
        unread = chat.stream_again()
        assert chat.history[-1] == ("assistant", old.text)
        unread = chat.stream_again()
        next(unread)
        assert len(chat.history) == 2 and chat.reply is not None
        assert chat.reply.finish_reason == "cancelled"
        assert chat.undo() == "x"
        assert list(unread) == [] and chat.history == []
