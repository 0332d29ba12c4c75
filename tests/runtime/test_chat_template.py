"""Templates behave as in transformers and fail with a sentence."""

from __future__ import annotations

import re

import pytest

from edgechat.errors import TemplateError
from edgechat.runtime.chat_template import ChatTemplate

USER = [{"role": "user", "content": "<a> & b"}]


def render(source: str, **special: str) -> str:
    return ChatTemplate(source, special).render(USER)


def test_features_hub_templates_use() -> None:
    assert render("{{ messages[0]['content'] | tojson }}") == '"<a> & b"'
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))
    assert (
        render("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{i}}{% endfor %}")
        == "1"
    )
    assert render("{% generation %}x{% endgeneration %}{{ bos_token }}", bos_token="<s>") == "x<s>"
    assert render("{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}") == "2"
    assert render("  {% if true %}\nx\n  {% endif %}\n") == "x\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "not valid"),
        ("{{ messages.nothing.at.all }}", "failed"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "without end"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
        ("{{ messages.append(1) }}", "failed"),
    ],
)
def test_a_bad_template_says_why(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source)


def test_the_clock_stands_still_until_restart() -> None:
    template = ChatTemplate("{{ strftime_now('%f') }}", {})
    first = template.render(USER)
    assert template.render(USER) == first
    template.restart()
    assert template.render(USER) != first


def test_split_finds_the_text_around_replies() -> None:
    source = "{% for m in messages %}[{{ m.role }}:{{ m.content | trim }}]{% endfor %}>"
    turns = [*USER, {"role": "assistant", "content": "  x "}, *USER]
    pieces = ChatTemplate(source, {}).split(turns)
    assert pieces == ["[user:<a> & b][assistant:", "][user:<a> & b]>"]


def test_split_admits_when_a_template_rewrites_replies() -> None:
    source = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    assert ChatTemplate(source, {}).split([{"role": "assistant", "content": "x"}]) is None
