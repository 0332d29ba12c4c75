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


LOOP = "{% for a in range(99999) %}"
DOUBLE = "{% set n = namespace(x=OLD) %}" + LOOP + "{% set n.x = NEW %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOP + LOOP + "{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(50) }}",
        LOOP + "x" * 100_000 + "{% endfor %}",
        "{% macro m() %}"
        + "x" * 100_000
        + "{% endmacro %}"
        + LOOP
        + "{% set y = m() %}{% endfor %}",
        DOUBLE.replace("OLD", "'x'").replace("NEW", "n.x ~ n.x"),
        DOUBLE.replace("OLD", "'x'").replace("NEW", "n.x + n.x"),
        DOUBLE.replace("OLD", "3").replace("NEW", "n.x * n.x"),
        "{{ 'x' * 100000000000 }}",
        "{{ [1] * 100000000000 }}",
        "{{ 9 ** 999999999 }}",
    ],
)
def test_a_template_without_end_comes_to_one(source: str) -> None:
    with pytest.raises(TemplateError, match="does not come to an end"):
        render(source)


def test_a_huge_template_is_refused() -> None:
    with pytest.raises(TemplateError, match="characters, far too many"):
        render("x" * 1_000_000)


def test_the_sandbox_changes_nothing_else() -> None:
    loop = "{% for x in [1, [2, 3]] recursive %}{{ loop(x) if x is iterable else x }}"
    assert render(loop + "{{ loop.length }}{{ loop.last }};{% endfor %}") == (
        "12False;22False;32True;2True;"
    )
    assert render("{{ 'a' ~ 1 ~ none }}{{ 1 + 1 }}{{ '-' * 3 }}{{ 2 ** 3 }}") == "a1None2---8"
    assert render("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}") == "a1"
    assert render("{% for m in nothing %}{% else %}none{% endfor %}") == "none"
    many = [*USER, {"role": "assistant", "content": "x" * 1000}] * 2000
    whole = ChatTemplate("{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}", {})
    assert len(whole.render(many)) > 2_000_000
