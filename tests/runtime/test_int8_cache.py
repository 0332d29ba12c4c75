"""The int8 KV cache: codes can be rotated, and compaction does not wear them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgechat.bundle import load_bundle
from edgechat.export import export_model, open_source
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.rotation import rotate_keys


@pytest.fixture(scope="module")
def caches(
    make_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One mild random model (its logits follow its inputs smoothly), with both kinds of cache."""
    source = open_source(str(make_folder(initializer_range=0.1)), print)
    target = tmp_path_factory.mktemp("bundles")
    return {kv: export_model(source, target / kv, "fp32", kv=kv).folder for kv in ("fp32", "int8")}


def test_keys_rotate_there_and_back() -> None:
    random = np.random.default_rng(0)
    keys = random.uniform(-80, 80, (2, 50, 32)).astype(np.float32)
    angles = random.uniform(-5, 5, (50, 1)) * np.ones((1, 12))  # 24 of 32 features rotate
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    there = rotate_keys(keys, cos, sin)
    assert np.abs(rotate_keys(there, cos, -sin) - keys).max() < 1e-4
    assert (there[..., 24:] == keys[..., 24:]).all()
    codes = keys.astype(np.int8)
    there = rotate_keys(codes, cos, sin)
    assert there.dtype == np.int8
    assert np.abs(rotate_keys(there, cos, -sin).astype(int) - codes).max() <= 2


def test_logits_stay_close_to_the_float_cache_through_compactions(
    caches: dict[str, Path],
) -> None:
    ids = np.random.default_rng(0).integers(3, 259, size=400)

    def read(path: Path) -> np.ndarray:
        cache = KVCache(OnnxEngine(load_bundle(path), 100), make_policy("window", 4))
        logits = [chunk.copy() for chunk in cache.feed_chunks(ids, all_logits=True)]
        assert cache.evicted >= 10 * 25  # ten compactions
        return np.concatenate(logits)

    exact, close = read(caches["fp32"]), read(caches["int8"])
    error = np.abs(close - exact).mean(axis=1) / exact.std()
    assert error.mean() < 0.03
    assert error[-100:].mean() < 1.5 * error[:100].mean()  # before the first compaction


def test_memory_is_a_quarter(caches: dict[str, Path]) -> None:
    bytes_of = {kv: load_bundle(path).manifest.kv_bytes_per_slot for kv, path in caches.items()}
    assert bytes_of["fp32"] == 4 * bytes_of["int8"]
