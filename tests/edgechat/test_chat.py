"""The public API keeps its promises and refuses nonsense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgechat import Chat, EdgechatError
from edgechat.errors import SettingsError


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
    with pytest.raises(EdgechatError, match="closed"):
        chat.say("x")
