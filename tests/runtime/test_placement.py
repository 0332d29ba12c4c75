"""What is said is found in the prompt wherever the template leaves it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates import DEEPSEEK, QWEN3, TRIMMED

from edgechat.runtime.chat_template import ChatTemplate, Message
from edgechat.runtime.placement import Placement

THOUGHT = "<think>\nThree times two?\n</think>\n\nSix.\n"


def talk(*said: str) -> list[Message]:
    """Questions and replies in turn."""
    return [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(said)
    ]


def found(source: str, messages: list[Message]) -> list[str | None]:
    """What is left of each message."""
    prompt, places = Placement(ChatTemplate(source, {})).place(messages)
    parts: list[str | None] = [None] * len(messages)
    for place in places:
        parts[place.message] = (parts[place.message] or "") + prompt[place.start : place.stop]
    return parts


@pytest.mark.parametrize(
    ("source", "reply", "kept"),
    [
        (QWEN3, THOUGHT, "Six.\n"),
        (QWEN3, "<think>\n\n</think>\n\nSix.", "Six."),
        (QWEN3, "<think>\nnever ends", "<think>\nnever ends"),
        (QWEN3, "Six.", "Six."),
        (DEEPSEEK, "Three times two?\n</think>\n\nSix.", "\n\nSix."),
        (TRIMMED, " \n" + THOUGHT, THOUGHT.strip()),
        (TRIMMED, "", ""),
        (TRIMMED, " \n ", ""),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "six", None),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", 'a "b"', None),
        ("{% for m in messages if m.content %}{{ m.content }}!{% endfor %}", "", None),
        ("{% for m in messages %}{{ m.content[:9] }}{% endfor %}", "far too long", None),
        ("{{ raise_exception('no') if 'edgechat' in messages[1].content }}", "x", None),
    ],
)
def test_what_a_template_leaves_of_a_reply(source: str, reply: str, kept: str | None) -> None:
    assert found(source, talk("?", reply, "?"))[1] == kept


def test_of_the_newest_reply_thinking_is_kept() -> None:
    assert found(QWEN3, talk("?", THOUGHT, "?", THOUGHT))[1::2] == ["Six.\n", THOUGHT]


def test_messages_out_of_order_are_found() -> None:
    """Mistral puts the system prompt into the last question."""
    source = (
        "{% for m in messages[1:] %}{% if loop.last %}{{ messages[0].content }}\n{% endif %}"
        "[{{ m.content }}]{% endfor %}"
    )
    messages = [{"role": "system", "content": "Be kind."}, *talk("a", "b", "c")]
    prompt, places = Placement(ChatTemplate(source, {})).place(messages)
    assert prompt == "[a][b]Be kind.\n[c]"
    assert [(p.message, p.start) for p in places] == [(1, 1), (2, 4), (0, 6), (3, 16)]


WORDS = ["<think>", "</think>", "\n", "\n\n", " ", "Hello.", "user", "[", "猫", "<|im_end|>"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=9).map("".join)


@given(st.sampled_from([QWEN3, DEEPSEEK, TRIMMED]), st.lists(TEXTS, min_size=1, max_size=6))
@settings(deadline=None, max_examples=300)
def test_every_place_holds_what_it_says(source: str, said: list[str]) -> None:
    messages = talk(*said)
    template = ChatTemplate(source, {})
    prompt, places = Placement(template).place(messages)
    assert prompt == template.render(messages)
    end = 0
    for place in places:
        assert end <= place.start <= place.stop
        end = place.stop
        text = prompt[place.start : place.stop]
        assert said[place.message][place.source :].startswith(text)
