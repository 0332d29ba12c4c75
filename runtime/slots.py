"""What each cache slot of one row holds, in order."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Ranges = list[tuple[int, int]]


class SlotTable:
    """Columns by slot number; the first ``length`` slots are valid.

    ``token``: its id, -1 where it was recalled. ``index``: place of the token in the transcript;
    ascending but for what was recalled, which stands in front of the turn that recalled it.
    ``used``: the transcript's length when the slot was filled: its age counts from there.
    ``surprisal`` (nats) and ``mass`` (attention, decayed) tell what the token is worth. ``hidden``
    [E] is its hidden state, ``content`` whether it counts as text rather than as the template's
    marks, ``ends`` whether a sentence may end with it. ``archived``: the archive has a copy;
    ``recalled``: it came from there. ``pinned``: policies must keep it.
    """

    COLUMNS: ClassVar = {
        "token": np.int64,
        "index": np.int64,
        "used": np.int64,
        "surprisal": np.float32,
        "mass": np.float32,
        "hidden": np.float32,
        "content": np.bool_,
        "ends": np.bool_,
        "archived": np.bool_,
        "recalled": np.bool_,
        "pinned": np.bool_,
    }

    def __init__(self, capacity: int, hidden_size: int = 0) -> None:
        self.capacity, self.length = capacity, 0
        self._columns: dict[str, NDArray[Any]] = {
            name: np.zeros((capacity, hidden_size) if name == "hidden" else capacity, dtype)
            for name, dtype in self.COLUMNS.items()
        }

    def __getattr__(self, name: str) -> NDArray[Any]:
        """A column's valid part, [length]: a view."""
        if name not in SlotTable.COLUMNS:
            raise AttributeError(name)
        return self._columns[name][: self.length]

    def append(self, start: int, count: int) -> slice:
        """Transcript tokens ``start`` … ``start + count - 1`` fill the next slots; which ones."""
        new = slice(self.length, self.length + count)
        self.length += count
        for column in self._columns.values():
            column[new] = 0
        self._columns["index"][new] = self._columns["used"][new] = np.arange(start, start + count)
        return new

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Only the slots ``kept`` (ascending) remain, moved together."""
        for column in self._columns.values():
            column[: len(kept)] = column[kept]
        self.length = len(kept)

    def truncate(self, length: int) -> None:
        self.length = length

    def copy(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Copies of all columns for a range of slots."""
        return {name: column[start:stop].copy() for name, column in self._columns.items()}

    def extend(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append slots as ``copy`` gave them."""
        count = len(columns["index"])
        for name, column in self._columns.items():
            column[self.length : self.length + count] = columns[name]
        self.length += count

    def pin(self, ranges: Ranges) -> None:
        """Exactly the slots whose transcript index lies in one of ``ranges`` are pinned, copies
        that were recalled excepted."""
        self.pinned[:] = inside(self.index, ranges) & ~self.recalled


def inside(index: NDArray[np.int64], ranges: Ranges) -> NDArray[np.bool_]:
    """Which of ``index`` lie in any of the half-open ``ranges``."""
    result = np.zeros(len(index), dtype=np.bool_)
    for start, stop in ranges:
        result |= (index >= start) & (index < stop)
    return result
