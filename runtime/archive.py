"""Evicted keys and values, kept on disk in blocks that can be found again by what they say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.errors import ArchiveError
from edgechat.runtime.engine import KV

BLOCK = 32  # tokens a block holds at most
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """``kv`` [layers, 2, H, n, D] of transcript tokens ``start`` … ``start + n - 1``, whose keys
    are rotated for the slots from ``origin`` on, and their ``surprisal`` [n]."""

    start: int
    origin: int
    kv: KV
    surprisal: NDArray[np.floating[Any]]

    @property
    def stop(self) -> int:
        return self.start + int(self.kv.shape[3])


@dataclass(frozen=True)
class ArchiveSize:
    """What an archive of ``most`` blocks takes: ``record_bytes`` each on disk, and in memory
    ``index_bytes`` each once it was written."""

    most: int
    record_bytes: int
    index_bytes: int


def archive_size(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], hidden_size: int, limit: int
) -> ArchiveSize:
    """Of an :class:`Archive` made with the same arguments; ArchiveError when it holds no block."""
    record_bytes = int(np.prod(shape)) * _stored(dtype).itemsize
    if limit < record_bytes:
        raise ArchiveError(
            f"an archive of {limit >> 20:,} MiB holds not one block of "
            f"{record_bytes / 2**20:.1f} MiB; choose a larger archive_mib."
        )
    return ArchiveSize(limit // record_bytes, record_bytes, 4 * 8 + 2 * (BLOCK + hidden_size))


def _stored(dtype: np.dtype[np.generic]) -> np.dtype[Any]:
    """The type a cache of ``dtype`` is archived in."""
    return np.dtype(np.float16) if dtype == np.float32 else np.dtype(dtype)


class Archive:
    """A ring of block records in one temporary file; the oldest make room for new ones.

    The file is read and written by position rather than mapped: pages of a mapping count as the
    process's memory. float32 caches are kept as float16, int8 ones as they are. ``shape`` is
    that of ``Block.kv`` with n = BLOCK; ``limit`` is in bytes; ``folder`` None is the system's
    temporary one. Where the system allows it the file has no name there; it goes when the process
    does. Raises ArchiveError when the disk is full or the folder cannot be written.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        hidden_size: int,
        folder: Path | None,
        limit: int,
    ) -> None:
        size = archive_size(shape, dtype, hidden_size, limit)
        self.shape, self.dtype = shape, _stored(dtype)
        self.most, self.record_bytes = size.most, size.record_bytes
        self.hidden_size = hidden_size
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise ArchiveError(
                f"the archive cannot be made in {folder} ({error.strerror}); choose another folder."
            ) from None
        # Untouched pages of these take no memory.
        self._starts = np.zeros(self.most, dtype=np.int64)
        self._counts = np.zeros(self.most, dtype=np.int64)
        self._skips = np.zeros(self.most, dtype=np.int64)  # leading tokens that no longer count
        self._origins = np.zeros(self.most, dtype=np.int64)
        self._surprisal = np.zeros((self.most, BLOCK), dtype=np.float16)
        self._vectors = np.zeros((self.most, hidden_size), dtype=np.float16)
        self._next = 0  # records ever written: the ring's head

    def __len__(self) -> int:
        """Records in use, emptied ones included."""
        return min(self._next, self.most)

    @property
    def starts(self) -> Ints:
        """First transcript token of each record, [len]."""
        return self._starts[: len(self)] + self._skips[: len(self)]

    @property
    def counts(self) -> Ints:
        """Tokens each record holds, [len]; 0 in emptied ones."""
        return self._counts[: len(self)]

    @property
    def vectors(self) -> NDArray[np.float16]:
        """Mean hidden state of each record, [len, E]."""
        return self._vectors[: len(self)]

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def wrapped(self) -> bool:
        """Whether old blocks have been overwritten."""
        return self._next > self.most

    def holds(self, index: Ints) -> NDArray[np.bool_]:
        """Which of the transcript tokens ``index`` [n] some block holds, [n]."""
        held = self.counts > 0
        order = np.argsort(self.starts[held], kind="stable")
        starts, counts = self.starts[held][order], self.counts[held][order]
        if not len(starts):
            return np.zeros(len(index), dtype=np.bool_)
        place = np.maximum(np.searchsorted(starts, index, side="right") - 1, 0)
        result: NDArray[np.bool_] = (index >= starts[place]) & (
            index < starts[place] + counts[place]
        )
        return result

    def add(self, block: Block, vector: NDArray[np.float32]) -> None:
        """Keep a block of at most BLOCK tokens; ``vector`` [E] says what it is about."""
        count = block.kv.shape[3]
        record = np.zeros(self.shape, dtype=self.dtype)
        record[..., :count, :] = block.kv
        place = self._next % self.most
        self._counts[place] = 0  # until it is written
        self._write(place, record)
        self._starts[place], self._counts[place] = block.start, count
        self._origins[place], self._skips[place] = block.origin, 0
        self._surprisal[place, :count] = block.surprisal
        self._vectors[place] = np.clip(vector, -65504, 65504)
        self._next += 1

    def read(self, record: int) -> Block:
        """The block in ``record``; it must hold tokens."""
        skip, count = int(self._skips[record]), int(self._counts[record])
        kv = self._read(record)
        held = slice(skip, skip + count)
        return Block(
            int(self._starts[record]) + skip,
            int(self._origins[record]) + skip,
            kv[..., held, :],
            self._surprisal[record, held],
        )

    def replace(self, start: int, stop: int, shift: int) -> None:
        """Forget transcript tokens ``start`` … ``stop - 1``; later ones moved by ``shift``."""
        first, counts = self.starts, self.counts
        end = first + counts
        for record in np.flatnonzero((first < start) & (end > stop)).tolist():
            with suppress(ArchiveError):  # on a full disk the block's rest is forgotten
                self._split(record, stop)
        first, counts = self.starts, self.counts
        end = first + counts
        cut_front = (first >= start) & (first < stop) & (end > stop)
        removed = np.where(cut_front, stop - first, 0)
        self._skips[: len(self)] += removed
        counts -= removed
        first = first + removed
        cut_back = (first < start) & (end > start)
        counts[cut_back] = start - first[cut_back]
        counts[(first >= start) & (end <= stop) & ~cut_front] = 0
        self._starts[: len(self)][first >= stop] += shift

    def truncate(self, start: int) -> None:
        """Forget transcript tokens from ``start`` on."""
        self.replace(start, np.iinfo(np.int64).max, 0)

    def clear(self) -> None:
        self._next = 0

    def table(self) -> dict[str, NDArray[Any]]:
        """The index of all blocks that hold tokens, oldest first, one row each."""
        places = self._places()
        columns = ("starts", "counts", "skips", "origins", "surprisal", "vectors")
        return {name: getattr(self, f"_{name}")[places] for name in columns}

    def records(self) -> Iterator[KV]:
        """The raw records, in the order of ``table``."""
        for place in self._places():
            yield self._read(int(place))

    def restore(self, table: dict[str, NDArray[Any]], records: Iterable[KV]) -> None:
        """Take over another archive's ``table`` and ``records``; the newest that fit stay."""
        self._next = 0
        for row, record in enumerate(records):
            place = self._next % self.most
            self._write(place, record)
            for name, column in table.items():
                getattr(self, f"_{name}")[place] = column[row]
            self._next += 1

    def close(self) -> None:
        self._file.close()

    def _split(self, record: int, place: int) -> None:
        """Let the tokens of ``record`` from transcript token ``place`` on be a block by itself."""
        block = self.read(record)
        head = place - block.start
        self._counts[record] = head
        rest = Block(place, block.origin + head, block.kv[..., head:, :], block.surprisal[head:])
        self.add(rest, self._vectors[record].astype(np.float32))

    def _places(self) -> Ints:
        """Records that hold tokens, oldest first."""
        first = max(0, self._next - self.most)
        places = np.arange(first, self._next) % self.most
        return places[self._counts[places] > 0]

    def _read(self, place: int) -> KV:
        kv = np.empty(self.shape, dtype=self.dtype)
        try:
            self._file.seek(place * self.record_bytes)
            got = self._file.readinto(kv.data.cast("B"))
        except OSError as error:
            raise ArchiveError(f"the archive cannot be read ({error.strerror}).") from None
        if got != self.record_bytes:
            raise ArchiveError("the archive's file was cut short by another program.")
        return kv

    def _write(self, place: int, record: KV) -> None:
        try:
            self._file.seek(place * self.record_bytes)
            written = self._file.write(record.data.cast("B"))
        except OSError as error:
            raise ArchiveError(
                f"the archive cannot be written ({error.strerror}); free some disk space, lower "
                "archive_mib or choose another archive folder."
            ) from None
        if written != self.record_bytes:
            raise ArchiveError(
                "the archive's disk is full; free some space, lower archive_mib or choose another "
                "archive folder."
            )
