"""What each cache slot of one row holds, in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SlotTable:
    """Slot number → place of its token in the transcript; the first ``length`` are valid.

    The first ``pinned`` tokens of the transcript (the system prompt) are never evicted.
    """

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self.pinned = 0  # leading slots that policies must keep
        self._index = np.zeros(capacity, dtype=np.int64)

    @property
    def capacity(self) -> int:
        return len(self._index)

    @property
    def index(self) -> NDArray[np.int64]:
        """Transcript index of each valid slot, [length], ascending."""
        return self._index[: self.length]

    def append(self, start: int, count: int) -> None:
        """Transcript tokens ``start`` … ``start + count - 1`` now fill the next slots."""
        self._index[self.length : self.length + count] = np.arange(start, start + count)
        self.length += count

    def keep(self, kept: NDArray[np.int64]) -> None:
        self._index[: len(kept)] = self._index[kept]
        self.length = len(kept)

    def truncate(self, length: int) -> None:
        self.length = length
