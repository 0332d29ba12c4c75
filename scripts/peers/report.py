"""The figures: medians, spreads, paired ratios, as JSON or as a table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NOISY = 0.05  # share of the CPUs used by other programs above which the numbers are doubtful


@dataclass
class Series:
    """Tokens per second of one peer at one measure, a value a round."""

    rates: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {
            "median": statistics.median(self.rates),
            "min": min(self.rates),
            "max": max(self.rates),
            "rounds": self.rates,
        }


Results = dict[str, dict[str, Series]]  # peer -> measure -> series


def ratio(ours: Series, theirs: Series) -> float:
    """The median of each round's ratio: the machine's drift touches both sides of a round."""
    return statistics.median(a / b for a, b in zip(ours.rates, theirs.rates, strict=True))


def as_json(results: Results, edgechats: Sequence[str]) -> dict[str, Any]:
    return {
        "tokens_per_second": {
            peer: {measure: series.summary() for measure, series in measures.items()}
            for peer, measures in results.items()
        },
        "ratios": {
            ours: {
                peer: {m: ratio(results[ours][m], series) for m, series in measures.items()}
                for peer, measures in results.items()
                if peer != ours
            }
            for ours in edgechats
        },
    }


def rows(results: Results, edgechats: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Header and lines: one line a peer and one for each of its ratios, one column a measure."""
    measures = list(next(iter(results.values())))
    lines = []
    for peer, by_measure in results.items():
        cells = []
        for series in by_measure.values():
            middle, low, high = (
                statistics.median(series.rates),
                min(series.rates),
                max(series.rates),
            )
            cells.append(f"{middle:.0f} ({low:.0f}-{high:.0f})")
        lines.append([peer, *cells])
    for ours in edgechats:
        for peer, by_measure in results.items():
            if peer != ours:
                ratios = [ratio(results[ours][m], series) for m, series in by_measure.items()]
                lines.append([f"{ours} / {peer}", *(f"x{value:.2f}" for value in ratios)])
    return ["tokens/s: median (min-max)", *measures], lines


def show(header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A rich table if rich is there, aligned text otherwise."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
        for line in [header, *lines]:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
        return
    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    # A terminal has its own width; anywhere else the table is not folded to 80 columns.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)


def warnings(others_busy: float | None, idle_spent: Mapping[str, float]) -> list[str]:
    """What makes the run doubtful."""
    found = []
    if others_busy is not None and others_busy > NOISY:
        found.append(f"other programs used {others_busy:.0%} of the CPUs meanwhile: run it again")
    for peer, seconds in idle_spent.items():
        if seconds > NOISY:
            found.append(f"while {peer} was measured, the idle workers used {seconds:.2f} CPU s")
    return found
