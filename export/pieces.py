"""Large arrays are worked on in pieces, so that what is computed on the way stays small."""

from __future__ import annotations

from collections.abc import Iterator

ELEMENTS = 1 << 22  # of a piece


def pieces(rows: int, features: int, elements: int = ELEMENTS) -> Iterator[slice]:
    """Slices that cover ``rows`` rows of ``features`` elements each, about ``elements`` at once."""
    step = max(1, elements // max(features, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
