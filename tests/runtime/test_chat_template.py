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
