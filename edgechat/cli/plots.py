"""Plots as PNG files; matplotlib comes with the ``plot`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgechat.errors import EdgechatError


@dataclass
class Series:
    """One line: ``y`` over ``x``."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def line_plot(path: Path, title: str, x_label: str, y_label: str, lines: list[Series]) -> None:
    """Write a line plot; EdgechatError when matplotlib or the folder is missing."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise EdgechatError(
            "plots need matplotlib; install it with: pip install 'edgechat[plot]'"
        ) from None
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        axes.plot(line.x, line.y, label=line.label)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise EdgechatError(f"the plot could not be written to {path} ({error}).") from None
