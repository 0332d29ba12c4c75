"""Eviction, re-rotation and rewinding leave exactly the cache they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgechat.bundle import load_bundle
from edgechat.errors import CapacityError, EngineError
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.slots import SlotTable


def make_cache(bundle: Path, capacity: int, policy: str = "window", sinks: int = 4) -> KVCache:
    return KVCache(OnnxEngine(load_bundle(bundle), capacity), make_policy(policy, sinks))


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 259, size=count)


def test_compaction_equals_a_cache_that_never_held_the_dropped_keys_elsewhere(
    tiny_folder: Path, tiny_bundle: Path
) -> None:
    """In layer 0 keys depend on the token and its position only: re-rotated = rotated anew."""
    ids = tokens(40)
    cache = make_cache(tiny_bundle, 64)
    cache.feed(ids)
    kept = np.array([0, 1, 2, 3, 20, 21, 30, 39])
    cache.engine.compact(0, kept)
    anew = make_cache(tiny_bundle, 64)
    anew.feed(ids[kept])
    for part in (0, 1):
        a = cache.engine._kv[0, part, 0, :, : len(kept)]
        b = anew.engine._kv[0, part, 0, :, : len(kept)]
        assert np.abs(a - b).max() < 1e-5


def test_window_keeps_sinks_and_recent_in_order() -> None:
    slots = SlotTable(100)
    slots.append(0, 100)
    kept = make_policy("window", 4)(slots, 50)
    assert kept.tolist() == [0, 1, 2, 3, *range(54, 100)]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100, 1000])
def test_any_length_streams_through_a_small_window(tiny_bundle: Path, length: int) -> None:
    cache = make_cache(tiny_bundle, 16)
    cache.feed(tokens(length))
    index = cache.slots.index
    assert cache.fed == length
    assert len(index) + cache.evicted == length
    assert index[:4].tolist() == list(range(min(4, length)))
    assert index[-1] == length - 1
    assert (np.diff(index[4:]) == 1).all()


def test_feeding_one_by_one_in_chunks_or_at_once_agrees(tiny_bundle: Path) -> None:
    ids = tokens(60)
    whole = make_cache(tiny_bundle, 64).feed(ids).copy()
    cache = make_cache(tiny_bundle, 64)
    cache.feed(ids[:13])
    for token in ids[13:40]:
        cache.feed_one(int(token))
    assert np.abs(cache.feed(ids[40:]) - whole).max() < 1e-4


def test_a_chunk_bounds_what_a_step_feeds(tiny_bundle: Path) -> None:
    ids = tokens(60)
    cache = KVCache(OnnxEngine(load_bundle(tiny_bundle), 64), make_policy("full", 0), chunk=16)
    sizes = [len(logits) for logits in cache.feed_chunks(ids, all_logits=True)]
    assert sizes == [16, 16, 16, 12]
    assert np.abs(cache.logits - make_cache(tiny_bundle, 64).feed(ids)).max() < 1e-4


def test_rewinding_gives_the_logits_of_a_fresh_start(tiny_bundle: Path) -> None:
    ids, other = tokens(50), tokens(20, seed=9)
    cache = make_cache(tiny_bundle, 100)
    cache.feed(ids)
    assert cache.rewind(30) == 30
    fresh = make_cache(tiny_bundle, 100)
    expected = fresh.feed(np.concatenate([ids[:30], other])).copy()
    assert np.abs(cache.feed(other) - expected).max() < 1e-4


def test_rewinding_into_evicted_tokens_forgets_everything(tiny_bundle: Path) -> None:
    cache = make_cache(tiny_bundle, 16)
    cache.feed(tokens(200))
    assert cache.rewind(100) == 0
    assert (cache.slots.length, cache.fed) == (0, 0)


def test_full_policy_ends_at_the_capacity(tiny_bundle: Path) -> None:
    cache = make_cache(tiny_bundle, 16, "full")
    cache.feed(tokens(16))
    with pytest.raises(CapacityError, match="evicts nothing"):
        cache.feed_one(5)
    with pytest.raises(CapacityError, match="room for 0"):
        cache.require_room(1)


def test_capacity_beyond_the_bundle_is_refused(tiny_bundle: Path) -> None:
    with pytest.raises(EngineError, match="export with --capacity"):
        make_cache(tiny_bundle, 257)
