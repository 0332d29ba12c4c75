"""Renders a model's own chat template, sandboxed, the way Hugging Face does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from edgechat.errors import TemplateError
from edgechat.runtime.template_sandbox import TemplateSandbox

Message = dict[str, str]


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks replies for training; here it is nothing."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it this way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Text of a conversation; ``special`` tokens (``bos_token``, …) are template variables,
    ``literals`` the strings that the template names.

    The clock that ``strftime_now`` sees stands still from creation until ``restart``: a
    conversation's beginning must not change while it is in the cache.
    """

    def __init__(self, source: str, special: dict[str, str]) -> None:
        environment = self._sandbox = TemplateSandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = self._strftime
        self._special = special
        self.restart()
        try:
            self._template = environment.from_string(source)
            named = [node.value for node in environment.parse(source).find_all(nodes.Const)]
        except TemplateError:
            raise
        except Exception as error:  # jinja compiles to Python, which can refuse it too
            raise TemplateError(f"the chat template is not valid ({error}).") from None
        self.literals = frozenset(value for value in named if isinstance(value, str))

    def restart(self) -> None:
        self.clock = datetime.now()

    def _strftime(self, pattern: str) -> str:
        return self.clock.strftime(pattern)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt for the next reply to ``messages`` (generation prompt included)."""
        self._sandbox.begin()
        pieces = []
        try:
            for piece in self._template.generate(
                messages=messages,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special,
            ):
                self._sandbox.spend(len(piece))
                pieces.append(piece)
            return "".join(pieces)
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError("the chat template calls itself without end.") from None
        except _RaisedByTemplate as error:
            raise TemplateError(f"the model's chat template says: {error}") from None
        except Exception as error:  # a template can raise anything: it is code
            raise TemplateError(
                f"the chat template failed ({type(error).__name__}: {error})."
            ) from None


class _RaisedByTemplate(Exception):
    pass


def _raise(message: str) -> None:
    raise _RaisedByTemplate(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers: plain JSON, no HTML escapes (jinja's own filter escapes < and &)."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
