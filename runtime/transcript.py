"""The token ids of a conversation as they were fed: the truth about what the cache saw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Transcript:
    """A growing array of token ids."""

    def __init__(self) -> None:
        self._ids = np.zeros(1024, dtype=np.int64)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> Ids:
        """A view, [len], valid until the next change."""
        return self._ids[: self._length]

    def append(self, ids: Ids) -> None:
        needed = self._length + len(ids)
        if needed > len(self._ids):
            grown = np.zeros(max(needed, 2 * len(self._ids)), dtype=np.int64)
            grown[: self._length] = self.ids
            self._ids = grown
        self._ids[self._length : needed] = ids
        self._length = needed

    def truncate(self, length: int) -> None:
        self._length = min(self._length, length)

    def common_prefix(self, other: Ids) -> int:
        """How many leading ids both share."""
        count = min(self._length, len(other))
        differs = np.flatnonzero(self._ids[:count] != other[:count])
        return int(differs[0]) if len(differs) else count
