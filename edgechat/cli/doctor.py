"""``edgechat doctor``: what is here, what a bundle needs, what would happen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgechat.doctor import Report, examine
from edgechat.errors import EngineError
from edgechat.settings import DEFAULT_PROFILE, load_profile

MARKS = {"good": Text("✓", "green"), "bad": Text("✗", "red"), "neither": Text("–", "dim")}


def doctor(
    bundle: Annotated[
        Path | None, typer.Argument(help="A bundle folder: would it run here?")
    ] = None,
    profile: Annotated[
        str,
        typer.Option(help="Profile (or .yaml file, or several joined by commas) to run it with."),
    ] = DEFAULT_PROFILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at this machine and tell what runs on it, what would not, and what to do about it.

    Every library and provider is tried, not only looked up. The exit code is 0 when the bundle
    would run, at once or after building its engine; without a bundle, when any could.
    """
    settings = load_profile(profile)
    with Console(stderr=True).status("looking"):
        report = examine(bundle, settings)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), ensure_ascii=False))
    else:
        _print(Console(), report)
    if not report.ok:
        raise EngineError(_why_not(bundle, report))


def _why_not(bundle: Path | None, report: Report) -> str:
    """One sentence; the other gaps are in the report."""
    verdict = report.verdict or report.targets["cpu"]
    first, others = verdict.gaps[0], len(verdict.gaps) - 1
    more = "" if not others else f" ({others} more gap{'' if others == 1 else 's'}: see the report)"
    what = "no bundle can run here" if bundle is None else f"{bundle} cannot run here"
    return f"{what}: {first}".removesuffix(".") + f"{more}."


def _print(console: Console, report: Report) -> None:
    for title, rows in report.findings.items():
        table = Table(
            title=title, title_justify="left", show_header=False, box=None, padding=(0, 1)
        )
        for row in rows:
            text = Text(row.text)
            if row.remedy:
                text.append(f"\n→ {row.remedy}", "yellow")
            table.add_row(MARKS[row.state], Text(row.name), text)
        console.print(table, highlight=False)
        console.print()
