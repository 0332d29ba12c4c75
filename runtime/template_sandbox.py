"""Jinja's sandbox with an end: a template comes with the model, and may be anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

from jinja2 import nodes
from jinja2.runtime import Context, Macro, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from edgechat.errors import TemplateError

LARGEST_TEMPLATE = 1 << 18  # characters; the longest real ones have about 20,000
BUDGET = 1 << 26  # characters of text that one rendering may make
STEP = 64  # what a step costs that makes none: a million of them are the end
SECONDS = 10.0  # real templates take milliseconds


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Every step of a loop, call and joining of texts is paid from a budget, which ``begin``
    fills; TemplateError when it is spent, whether on loops without end or on huge text.

    What one filter makes at once is not counted before it is there.
    """

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, **options)  # else constants are computed unpaid
        self._macro_text = 0
        self.begin()

    def begin(self) -> None:
        """Before each rendering."""
        self._left = BUDGET
        self._deadline = time.monotonic() + SECONDS

    def spend(self, characters: int) -> None:
        self._left -= STEP + characters
        if self._left < 0 or time.monotonic() > self._deadline:
            raise TemplateError(
                "the chat template does not come to an end, or makes far too much text; put one "
                "that does as chat_template.jinja into the model folder and export again."
            )

    def counted(self, iterable: Iterable[Any], text: int) -> Iterator[Any]:
        """What a loop goes through; its body holds ``text`` characters."""
        for item in iterable:
            self.spend(text)
            yield item

    def joined(self, *parts: Any) -> str:
        """``a ~ b``."""
        result = str_join(parts)
        self.spend(len(result))
        return result

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.spend(self._macro_text if isinstance(obj, Macro) else 0)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.spend(_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > LARGEST_TEMPLATE:
            raise TemplateError(f"the chat template has {len(source):,} characters, far too many.")
        tree = super()._parse(source, name, filename)
        self._macro_text = sum(map(_text, tree.find_all(nodes.Macro)))
        _Counting().visit(tree)
        tree.set_environment(self)
        return tree


class _Counting(NodeTransformer):
    """Makes loops and joins go through the sandbox's ``counted`` and ``joined``."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        text = nodes.Const(_text(node))
        self.generic_visit(node)
        node.iter = _call("counted", [cast(nodes.Expr, node.iter), text], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)


def _call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=lineno)


def _text(node: nodes.Node) -> int:
    return sum(len(part.data) for part in node.find_all(nodes.TemplateData))


def _size(operator: str, left: Any, right: Any) -> int:
    """About how many characters ``left operator right`` will have; all there are for numbers of
    more than 65,536 bits, whose products take ever longer."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length()
        return bits if bits < 1 << 16 else BUDGET
    sizes = [len(x) for x in (left, right) if hasattr(x, "__len__")]
    counts = [max(x, 0) for x in (left, right) if isinstance(x, int)]
    return sum(sizes) * (counts[0] if operator == "*" and counts else 1)
