"""``edgechat eval --recall``: what is remembered, for any list of policies, as a table and plot."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from edgechat.bundle import Bundle
from edgechat.cli.plots import Series, line_plot
from edgechat.errors import SettingsError
from edgechat.recall_eval import (
    Outcome,
    Subject,
    as_rows,
    chat_test,
    make_filler,
    password_test,
    read_facts,
)
from edgechat.settings import Settings


def run_recall(
    bundle: Bundle,
    settings: Settings,
    text: str,
    questions: Path | None,
    policies: list[str],
    distances: str,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Run the password test, and with ``questions`` the chat test, and show the outcomes."""
    lengths = _numbers(distances)
    console = Console(stderr=True)
    outcomes: list[Outcome] = []
    with console.status("reading") as status:
        filler = (
            None
            if questions is None
            else make_filler(bundle, questions, status.update, settings.allow_fallback)
        )
        for name in policies:
            subject = Subject(bundle, name, settings, max(lengths) + 400)
            outcomes += password_test(subject, text, lengths, status.update)
            for length in lengths if filler is not None else []:
                outcomes += chat_test(subject, filler or [], length, status.update)
    if plot is not None:
        _plot(plot, outcomes)
    if as_json:
        typer.echo(json.dumps(as_rows(outcomes)))
    else:
        Console().print(_table(outcomes, settings))


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) >= 300 for part in parts):
        raise SettingsError(
            f"--distances is {text!r}; give numbers of tokens from 300 on, such as 2000,4000."
        )
    return sorted(int(part) for part in parts)


def _table(outcomes: list[Outcome], settings: Settings) -> Table:
    facts = len(read_facts()[0])
    table = Table(
        title=f"What is remembered with a window of {settings.cache_window:,} tokens",
        caption=f"loss: nats of the right answer (lower is better); chosen: it is the likeliest of "
        f"{facts} answers; exact: the greedy reply is it; found: it was in the cache",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("test", "tokens", "policy", "loss", "chosen", "exact", "found"):
        table.add_column(name, justify="left" if name in ("test", "policy") else "right")
    for o in sorted(outcomes, key=lambda o: (o.test, o.tokens)):
        shares = (o.chosen, o.exact, o.found)
        shown = ["" if share is None else f"{share:.0%}" for share in shares]
        table.add_row(o.test, f"{o.tokens:,}", o.policy, f"{o.loss:.2f}", *shown)
    return table


def _plot(path: Path, outcomes: list[Outcome]) -> None:
    lines: dict[str, Series] = {}
    for o in outcomes:
        line = lines.setdefault(f"{o.policy}, {o.test}", Series(f"{o.policy}, {o.test}", [], []))
        line.x, line.y = [*line.x, o.tokens], [*line.y, o.loss]
    line_plot(path, "what is remembered", "tokens", "nats of the answer", list(lines.values()))
