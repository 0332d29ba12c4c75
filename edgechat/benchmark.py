"""Speeds of a bundle on this machine, and how far they are from the memory bandwidth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgechat.assembly import make_engine
from edgechat.bundle import Bundle
from edgechat.runtime.cores import usable_cores
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.policies import make_policy

Ids = NDArray[np.int64]
DECODE_STEPS = 48


@dataclass(frozen=True)
class Measure:
    """Median, lowest and highest of several runs, in the unit its name says."""

    median: float
    low: float
    high: float


def repeat(rounds: int, run: Callable[[], float]) -> Measure:
    """One warm-up, then ``rounds`` runs of ``run``, which returns a figure."""
    run()
    figures = [run() for _ in range(rounds)]
    return Measure(statistics.median(figures), min(figures), max(figures))


def memory_bandwidth(threads: int, rounds: int = 5) -> Measure:
    """Bytes/s this machine reads from memory with ``threads`` threads, in GB/s (10^9).

    Each thread takes the maximum of its share of 512 MiB: one read of each byte, no writes.
    """
    block = np.ones(128 << 20, dtype=np.float32)
    parts = np.array_split(block, threads)
    with ThreadPoolExecutor(threads) as pool:

        def run() -> float:
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            return block.nbytes / (time.perf_counter() - start) / 1e9

        return repeat(rounds, run)


class Bench:
    """Times one bundle; every figure is tokens/s, seconds or bytes as its name says."""

    def __init__(self, bundle: Bundle, capacity: int, threads: int | None, rounds: int) -> None:
        start = time.perf_counter()
        self.engine = make_engine(bundle, capacity, threads)
        self.load_seconds = time.perf_counter() - start
        self.threads = threads or usable_cores()
        self._rounds = rounds
        self._ids = np.random.default_rng(0).integers(0, bundle.manifest.tokens.size, size=capacity)

    def prefill(self, tokens: int) -> Measure:
        """Tokens/s of reading ``tokens`` tokens into an empty cache."""

        def run() -> float:
            start = time.perf_counter()
            self._cache().feed(self._ids[:tokens])
            return tokens / (time.perf_counter() - start)

        return repeat(self._rounds, run)

    def decode(self, history: int) -> Measure:
        """Tokens/s of decode steps behind ``history`` cached tokens."""
        steps = min(DECODE_STEPS, self.engine.capacity - history)
        cache = self._cache()
        cache.feed(self._ids[:history])

        def run() -> float:
            cache.rewind(history)
            start = time.perf_counter()
            for token in self._ids[:steps].tolist():
                cache.feed_one(token)
            return steps / (time.perf_counter() - start)

        return repeat(self._rounds, run)

    def decode_for(self, seconds: float, history: int) -> int:
        """Decodes behind ``history`` cached tokens for about that long; returns the tokens."""
        steps = min(DECODE_STEPS, self.engine.capacity - history)
        cache = self._cache()
        cache.feed(self._ids[:history])
        end, tokens = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            cache.rewind(history)
            for token in self._ids[:steps].tolist():
                cache.feed_one(token)
            tokens += steps
        return tokens

    def later_turn(self, history: int, delta: int) -> tuple[Measure, Measure]:
        """Seconds until logits for a turn of ``delta`` tokens after ``history``: fed as a delta,
        and with the whole history fed again."""
        cache = self._cache()
        cache.feed(self._ids[:history])

        def reuse() -> float:
            cache.rewind(history)
            start = time.perf_counter()
            cache.feed(self._ids[history : history + delta])
            return time.perf_counter() - start

        def again() -> float:
            start = time.perf_counter()
            self._cache().feed(self._ids[: history + delta])
            return time.perf_counter() - start

        return repeat(self._rounds, reuse), repeat(max(1, self._rounds // 2), again)

    def _cache(self) -> KVCache:
        return KVCache(self.engine, make_policy("full", 0))


def peak_memory() -> int | None:
    """Largest resident memory of this process so far, in bytes; None where Linux is not."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    (line,) = [x for x in status.read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
