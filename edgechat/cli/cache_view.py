"""A conversation coloured by what each token is to the cache: in a terminal and as a page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from edgechat.cache_map import STATES, MappedTurn, total_counts


@dataclass(frozen=True)
class Look:
    """``meaning`` for the legend; ``terminal``: a rich style that says both colours or none, so
    that it can be read on dark and on light; ``light`` and ``dark``: CSS backgrounds."""

    meaning: str
    terminal: str
    light: str
    dark: str


LOOKS = {
    "sink": Look("the first tokens, always kept", "white on magenta", "#f3c6f3", "#6d2a6d"),
    "pinned": Look(
        "system prompt, pins and last questions, kept", "white on blue", "#c5d8fb", "#234a8f"
    ),
    "key": Look("old, kept because it mattered", "black on yellow", "#fbe79b", "#6b5600"),
    "recent": Look("the newest, kept", "", "transparent", "transparent"),
    "recalled": Look("brought back for a question", "black on green", "#bdeac2", "#1f6130"),
    "archived": Look("left the cache, can be recalled", "black on cyan", "#c4ecef", "#1c5a60"),
    "forgotten": Look("left the cache for good", "dim strike", "#e6e6e6", "#3d3d3d"),
    "unread": Look("read with the next message", "italic", "transparent", "transparent"),
}
HIDDEN = "(empty, or changed by the chat template)"
COUNTED = "Tokens of the text, the chat template's marks left out:"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_cache(console: Console, turns: Sequence[MappedTurn]) -> None:
    """The turns and a legend; where there are no colours, marks as in [key: text] stand in."""
    plain = console.color_system is None
    for turn in turns:
        line = Text(f"{turn.role}: ", style="bold")
        for text, state in turn.pieces:
            shown = CONTROL.sub("\ufffd", text)
            if plain and state != "recent":
                shown = f"[{state}: {shown}]"
            line.append(shown, style="not bold " + LOOKS[state].terminal)
        if not turn.pieces:
            line.append(HIDDEN, style="not bold dim")
        console.print(line)
    if turns:
        console.print()
    console.print(Text(COUNTED, style="dim"))
    for state, count in total_counts(turns).items():
        row = Text(f"{count:>8,} ")
        row.append(f" {state} ", style=LOOKS[state].terminal)
        row.append(" " * (11 - len(state)) + LOOKS[state].meaning)
        console.print(row)


def cache_page(title: str, turns: Sequence[MappedTurn]) -> str:
    """The same as one HTML page that needs nothing else."""
    body = []
    for turn in turns:
        spans = "".join(_span(text, state) for text, state in turn.pieces)
        body.append(f"<h2>{_escape(turn.role)}</h2>\n<p>{spans or _escape(HIDDEN)}</p>")
    legend = "\n".join(
        f"<tr><td>{count:,}</td><td>{_span(state, state)}</td>"
        f"<td>{_escape(LOOKS[state].meaning)}</td></tr>"
        for state, count in total_counts(turns).items()
    )
    return PAGE.format(
        title=_escape(title),
        light="\n".join(f".{s} {{ background: {LOOKS[s].light}; }}" for s in STATES),
        dark="\n".join(f"  .{s} {{ background: {LOOKS[s].dark}; }}" for s in STATES),
        counted=COUNTED,
        legend=legend,
        turns="\n".join(body),
    )


def _span(text: str, state: str) -> str:
    title = _escape(f"{state}: {LOOKS[state].meaning}")
    return f'<span class="{state}" title="{title}">{_escape(text)}</span>'


def _escape(text: str) -> str:
    return html.escape(CONTROL.sub("\ufffd", text))


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.3em; }}
h2 {{ font-size: 0.85em; margin: 1.2em 0 0; opacity: 0.7; }}
p {{ margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }}
caption {{ text-align: left; opacity: 0.7; }}
td {{ padding: 0.1em 0.8em 0.1em 0; }}
td:first-child {{ text-align: right; font-variant-numeric: tabular-nums; }}
span {{ border-radius: 0.2em; }}
.forgotten {{ text-decoration: line-through; }}
.unread {{ font-style: italic; }}
{light}
@media (prefers-color-scheme: dark) {{
{dark}
}}
</style>
</head>
<body>
<h1>{title}</h1>
<table>
<caption>{counted}</caption>
{legend}
</table>
{turns}
</body>
</html>
"""
