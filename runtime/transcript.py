"""The token ids of a conversation as they were fed: the truth about what the cache saw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Transcript:
    """A growing array of token ids."""

    def __init__(self, ids: Ids | None = None) -> None:
        self._ids = np.zeros(1024, dtype=np.int64)
        self._length = 0
        if ids is not None:
            self.append(ids)

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

    def splice(self, start: int, stop: int, ids: Ids) -> None:
        """Put ``ids`` in place of tokens ``start`` … ``stop - 1``."""
        tail = self.ids[stop:].copy()
        self.truncate(start)
        self.append(ids)
        self.append(tail)

    def common_prefix(self, other: Ids) -> int:
        """How many leading ids both share."""
        return _common(self.ids, other)

    def find_edit(self, other: Ids) -> tuple[int, int, int] | None:
        """(start, stop, new stop) such that the transcript's tokens ``start`` … ``stop - 1`` were
        replaced in ``other`` by its tokens ``start`` … ``new stop - 1`` and all that follows in
        the transcript follows there too. None when no tail is left to keep.
        """
        start = self.common_prefix(other)
        tail = self.ids[start:]
        for probe in (PROBE, PROBE // 4):
            if len(tail) <= probe:
                continue
            end = _last_place(other[start:], tail[-probe:])
            if end is None:
                continue
            same = _common(tail[::-1], other[start : start + end][::-1])
            return start, len(self) - same, start + end - same
        return None


PROBE = 64  # tokens at the transcript's end that tell where it ends in the other text


def _common(one: Ids, other: Ids) -> int:
    count = min(len(one), len(other))
    differs = np.flatnonzero(one[:count] != other[:count])
    return int(differs[0]) if len(differs) else count


def _last_place(ids: Ids, wanted: Ids) -> int | None:
    """End of the last place in ``ids`` where ``wanted`` stands."""
    if len(ids) < len(wanted):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(wanted))
    places = np.flatnonzero((windows == wanted).all(axis=1))
    return int(places[-1]) + len(wanted) if len(places) else None
