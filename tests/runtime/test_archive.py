"""The archive against a plain list of tokens, and on a disk that fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.chat import Chat
from edgechat.errors import ArchiveError
from edgechat.runtime.archive import BLOCK, Archive, Block

SHAPE = (2, 2, 1, BLOCK, 4)
RECORD = int(np.prod(SHAPE))


def make(most: int = 100, dtype: Any = np.int8, folder: Path | None = None) -> Archive:
    size = 2 if np.dtype(dtype) == np.float32 else np.dtype(dtype).itemsize
    return Archive(SHAPE, np.dtype(dtype), 3, folder, most * RECORD * size)


def block(start: int, labels: list[int], origin: int = 0) -> Block:
    """Tokens that carry ``labels`` in their keys, values and surprisal."""
    kv = np.broadcast_to(
        np.array(labels, np.int8)[None, None, None, :, None], (2, 2, 1, len(labels), 4)
    )
    return Block(start, origin, kv, np.array(labels, np.float32))


def content(archive: Archive) -> dict[int, tuple[int, int]]:
    """Label and origin of every archived token."""
    found: dict[int, tuple[int, int]] = {}
    for record in np.flatnonzero(archive.counts):
        got = archive.read(int(record))
        assert got.start == archive.starts[record]
        labels = got.kv[0, 0, 0, :, 0].astype(int).tolist()
        assert (got.kv == got.kv[:1, :1, :1, :, :1]).all()
        assert got.surprisal.astype(int).tolist() == labels
        for place, label in enumerate(labels):
            assert got.start + place not in found, "archived twice"
            found[got.start + place] = (label, got.origin + place)
    assert archive.tokens == len(found)
    return found


CHANGES = st.lists(
    st.tuples(st.integers(0, 70), st.integers(0, 30), st.integers(0, 30)), max_size=5
)


@given(st.lists(st.integers(1, BLOCK), min_size=1, max_size=6), CHANGES, st.booleans())
@settings(deadline=None)
def test_replace_agrees_with_a_list(
    sizes: list[int], changes: list[tuple[int, int, int]], restored: bool
) -> None:
    archive, model, start = make(), [], 0
    for size in sizes:
        labels = [(start + i) % 120 for i in range(size)]
        archive.add(block(start, labels, 7 * start), np.zeros(3, np.float32))
        model += [(label, 7 * start + i) for i, label in enumerate(labels)]
        start += size
    told: list[tuple[int, int] | None] = list(model)
    for place, removed, added in changes:
        stop = place + removed
        archive.replace(place, stop, added - removed)
        told += [None] * (stop - len(told))
        told[place:stop] = [None] * added
        if restored:
            other = make()
            other.restore(archive.table(), list(archive.records()))
            archive = other
        assert content(archive) == {i: t for i, t in enumerate(told) if t is not None}
    archive.truncate(10)
    assert content(archive) == {i: t for i, t in enumerate(told[:10]) if t is not None}
    archive.clear()
    assert content(archive) == {} and len(archive) == 0


def test_the_oldest_make_room() -> None:
    archive = make(most=3)
    for number in range(8):
        archive.add(block(10 * number, [number] * 10), np.full(3, number, np.float32))
        assert len(archive) == min(3, number + 1)
    assert sorted(content(archive)) == list(range(50, 80))
    assert sorted(archive.vectors[:, 0].tolist()) == [5, 6, 7]
    other = make(most=2)
    other.restore(archive.table(), archive.records())
    assert sorted(content(other)) == list(range(60, 80))


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-3), (np.int8, 0)])
def test_precision(dtype: Any, error: float) -> None:
    archive = make(dtype=dtype)
    random = np.random.default_rng(0)
    kv = random.uniform(-4, 4, (2, 2, 1, BLOCK, 4)).astype(dtype)
    archive.add(Block(5, 9, kv, np.ones(BLOCK, np.float32)), np.array([1e9, -1e9, 1], np.float32))
    got = archive.read(0)
    assert (got.start, got.stop, got.origin) == (5, 5 + BLOCK, 9)
    assert np.abs(got.kv.astype(np.float32) - kv).max() <= error
    assert got.kv.dtype == (np.float16 if dtype == np.float32 else np.int8)
    assert np.isfinite(archive.vectors).all()


def test_an_archive_of_no_block_is_refused() -> None:
    with pytest.raises(ArchiveError, match="choose a larger archive_mib"):
        make(most=0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ArchiveError, match="choose another folder"):
        make(folder=tmp_path)


def test_a_missing_folder_is_refused_and_none_leaves_a_file(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"No such file.*choose another folder"):
        make(folder=tmp_path / "none")
    archive = make(folder=tmp_path)
    archive.add(block(0, [1]), np.zeros(3, np.float32))
    assert list(tmp_path.iterdir()) == []


class FullDisk:
    """A file on a disk that takes ``left`` more bytes."""

    def __init__(self, file: Any, left: int) -> None:
        self.file, self.left = file, left

    def write(self, data: memoryview) -> int:
        if self.left == 0:
            raise OSError(28, os.strerror(28))
        count = min(self.left, len(data))
        self.left -= count
        return int(self.file.write(data[:count]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("records", [0, 1, 2.5, 6])
@pytest.mark.parametrize("policy", ["key", "window"])
def test_a_full_disk_says_so_and_the_chat_goes_on(
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    tell: Callable[..., str],
    check_cache: Callable[..., None],
    records: float,
    policy: str,
) -> None:
    chat = open_chat(tiny_bundle, 96, policy=policy)
    archive = chat._conversation.cache.memory.archive  # type: ignore[union-attr]
    file = archive._file
    archive._file = FullDisk(file, int(records * archive.record_bytes))  # type: ignore[assignment]
    lost = 0
    for number in range(12):
        reply = f"a good answer is {number}"
        assert tell(chat, f"question {number}", reply) == reply
        check_cache(chat._conversation, tiny_bundle)
        assert chat.usage is not None and chat.usage.lost_tokens <= chat.usage.evicted_tokens
        lost += chat.usage.lost_tokens
    assert lost
    archive._file = file
    for number in range(6):
        assert tell(chat, f"question {number}", "an answer") == "an answer"
        assert chat.usage is not None and chat.usage.lost_tokens == 0
        check_cache(chat._conversation, tiny_bundle)
    assert archive.tokens > 100


def test_a_file_cut_short_is_noticed() -> None:
    archive = make()
    archive.add(block(0, [1, 2]), np.zeros(3, np.float32))
    archive._file.truncate(5)
    with pytest.raises(ArchiveError, match="cut short"):
        archive.read(0)
