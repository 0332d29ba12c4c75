"""What a cache forgets and finds again: the archive and the space its blocks are compared in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.runtime.archive import BLOCK, Archive, Block
from edgechat.runtime.engine import KV, Engine
from edgechat.runtime.slots import SlotTable
from edgechat.runtime.topic import TopicSpace

Mask = NDArray[np.bool_]
LEAST_SIMILARITY = 0.28  # cosine: what is asked for has more, most other text less


class Memory:
    """An ``archive`` and the ``topics`` that find its blocks."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.topics = TopicSpace(archive.hidden_size)

    def store(self, engine: Engine, slots: SlotTable, gone: Mask, turns: list[int]) -> None:
        """Archive the slots ``gone`` [length] that are not there yet.

        What lies between them goes along even if it stays, so that a block is whole; blocks
        break where the transcript has a gap and where a turn starts.
        """
        if self.archive.wrapped:  # copies of what is still cached may have been overwritten
            slots.archived[:] &= self.archive.holds(slots.index)
        new = np.flatnonzero(gone & ~slots.archived)
        if not len(new):
            return
        span = np.arange(new[0], new[-1] + 1)
        span = span[~slots.archived[span] & ~(slots.pinned[span] & ~gone[span])]
        index = slots.index[span]
        breaks = (np.diff(index) != 1) | (np.diff(span) != 1) | np.isin(index[1:], turns)
        for run in np.split(span, np.flatnonzero(breaks) + 1):
            for block in _cut(run, slots.ends[run]):
                self._add(engine, slots, block)
                slots.archived[block] = True
        text = span[slots.content[span]]
        if len(text):
            self.topics.observe(slots.hidden[text])

    def find(self, query: NDArray[np.float32], most: int, before: int) -> list[Block]:
        """The ``most`` blocks most about ``query`` [E] that end before transcript token
        ``before``, best first; none that is hardly about it."""
        archive = self.archive
        scores = self.topics.similarity(archive.vectors, query)
        fits = (archive.counts > 0) & (archive.starts + archive.counts <= before)
        usable = np.flatnonzero(fits & (scores >= LEAST_SIMILARITY))
        best = usable[np.argsort(-scores[usable], kind="stable")[:most]]
        return [archive.read(int(record)) for record in best]

    def tables(self) -> dict[str, dict[str, NDArray[Any]]]:
        """The index and the statistics, by name, for a session file."""
        return {"archive": self.archive.table(), "topics": self.topics.table()}

    def restore(self, tables: dict[str, dict[str, NDArray[Any]]], records: Iterable[KV]) -> None:
        """Take over what ``tables`` gave, and the archive's ``records``."""
        self.archive.restore(tables["archive"], records)
        self.topics.restore(tables["topics"])

    def _add(self, engine: Engine, slots: SlotTable, run: NDArray[np.int64]) -> None:
        text = run[slots.content[run]]
        vector = slots.hidden[text if len(text) else run].mean(axis=0)
        first = int(run[0])
        kv = engine.read(0, first, len(run))
        block = Block(int(slots.index[first]), first, kv, slots.surprisal[run])
        self.archive.add(block, vector)


def _cut(run: NDArray[np.int64], ends: Mask) -> Iterator[NDArray[np.int64]]:
    """Pieces of at most BLOCK tokens, cut behind the last sentence that ends in the second half."""
    while len(run) > BLOCK:
        stops = np.flatnonzero(ends[BLOCK // 2 : BLOCK])
        size = BLOCK // 2 + int(stops[-1]) + 1 if len(stops) else BLOCK
        yield run[:size]
        run, ends = run[size:], ends[size:]
    yield run
