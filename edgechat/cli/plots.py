"""Plots as PNG files; matplotlib comes with the ``plot`` extra."""

from __future__ import annotations

import importlib.util
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


def check_plot(path: Path | None) -> None:
    """EdgechatError if a plot could not be written to ``path``, before the work is done."""
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise EdgechatError("plots need matplotlib; install it with: pip install 'edgechat[plot]'")
    if not path.absolute().parent.is_dir():
        raise EdgechatError(f"the plot could not be written: {path.parent} does not exist.")


def line_plot(path: Path, title: str, x_label: str, y_label: str, lines: list[Series]) -> None:
    """Write a line plot; EdgechatError when it cannot be written."""
    check_plot(path)
    from matplotlib.figure import Figure

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
