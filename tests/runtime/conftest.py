"""Chats with tiny models, scripted replies, and a check of everything a cache must be."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_device import SimulatedCuda, SimulatedTensorRt

from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.export import export_model, open_source
from edgechat.runtime.conversation import Conversation
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.sampling import SamplingSettings
from edgechat.runtime.slots import inside
from edgechat.settings import Settings

GREEDY = SamplingSettings(temperature=0, repeat_penalty=1)
KEPT_EXACT, KEPT_HALF = 1e-4, 1e-2  # of float32 copies, of ones that went through float16
MARK = 1  # <|im_start|>
CODES = 6.0  # of int8 codes that were rotated a few times


NATIVE = ("edgechat.runtime.tensorrt.context", "edgechat.runtime.tensorrt_engine")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCuda]:
    """A simulated GPU and TensorRT; at the end all memory must have been given back."""
    cuda = SimulatedCuda()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", SimulatedTensorRt(cuda))
    for name in NATIVE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield cuda
    assert not cuda.blocks
    assert not cuda.graphs
    assert not cuda.streams


class Script:
    """A sampler that says prepared ids, then the end token."""

    def __init__(self, ids: Sequence[int], end: int = 2) -> None:
        self.ids, self.end = list(ids), end
        self.state: dict[str, Any] = np.random.default_rng(0).bit_generator.state  # type: ignore[assignment]

    def sample(self, logits: np.ndarray, recent: Sequence[int]) -> int:
        return self.ids.pop(0) if self.ids else self.end


@pytest.fixture(scope="session")
def tiny_int8_cache(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "tiny-kv-int8"
    return export_model(open_source(str(tiny_folder), print), target, "fp32", kv="int8").folder


@pytest.fixture(scope="session")
def other_bundle(
    make_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "tiny-other"
    return export_model(open_source(str(make_folder(seed=5)), print), target, "fp32").folder


@pytest.fixture
def open_chat() -> Iterator[Callable[..., Chat]]:
    """``open_chat(bundle, capacity, system, **settings)``: a chat with any profile."""
    opened: list[Chat] = []

    def make(bundle: Path, capacity: int = 96, system: str | None = "s", **given: Any) -> Chat:
        settings = Settings(
            cache_window=capacity - 4, archive_mib=8, recall_blocks=2, threads=1, sampling=GREEDY
        )
        chat = Chat(load_bundle(bundle), dataclasses.replace(settings, **given), capacity, system)
        opened.append(chat)
        return chat

    yield make
    for chat in opened:
        if not chat._closed:
            chat.close()


@pytest.fixture
def prepare() -> Callable[[Chat, str], None]:
    """``prepare(chat, reply)``: what the model will say next, whatever it is asked."""

    def script(chat: Chat, reply: str) -> None:
        chat._sampler = Script(chat._codec.encode(reply))  # type: ignore[assignment]

    return script


@pytest.fixture
def tell(prepare: Callable[[Chat, str], None]) -> Callable[..., str]:
    """``tell(chat, text, reply)``: says ``text`` (None: the last one again) and gets ``reply``."""

    def say(chat: Chat, text: str | None, reply: str = "ok") -> str:
        prepare(chat, reply)
        return chat.regenerate().text if text is None else chat.say(text).text

    return say


@pytest.fixture(scope="session")
def layer0() -> Callable[[Path], Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """``layer0(bundle)(ids, slots)``: what layer 0 caches for ``ids`` at ``slots``, [2, H, n, D].

    In layer 0 keys before rotary and values depend on the token only: they are taken from a fresh
    engine and turned, in float64, to the slot.
    """
    known: dict[Path, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}

    def make(bundle: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        if bundle in known:
            return known[bundle]
        loaded = load_bundle(bundle)
        parts = []
        for start in range(0, 320, 160):
            cache = KVCache(OnnxEngine(loaded, 200, threads=1), make_policy("full", 0))
            cache.feed(np.arange(start, start + 160))
            parts.append(cache.engine.read(0, 0, 160)[0].astype(np.float64))
        table = np.concatenate(parts, axis=2)
        place = np.arange(320) % 160
        inv_freq = np.asarray(loaded.manifest.rotary[0].inv_freq, dtype=np.float64)
        half = len(inv_freq)

        def expect(ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
            kv = table[:, :, ids].copy()
            turn = np.exp(1j * (slots - place[ids])[:, None] * inv_freq)
            pairs = (kv[0, ..., :half] + 1j * kv[0, ..., half : 2 * half]) * turn
            kv[0, ..., :half], kv[0, ..., half : 2 * half] = pairs.real, pairs.imag
            return kv

        known[bundle] = expect
        return expect

    return make


@pytest.fixture
def check_cache(
    layer0: Callable[[Path], Callable[[np.ndarray, np.ndarray], np.ndarray]],
) -> Callable[..., None]:
    """``check_cache(conversation, bundle)``: slots, keys, values and archive fit the transcript."""

    def check(c: Conversation, bundle: Path) -> None:
        expect = layer0(bundle)
        cache, slots, ids = c.cache, c.cache.slots, c.transcript.ids
        index, count = slots.index, slots.length
        assert cache.fed == len(ids)
        assert count <= cache.engine.capacity
        assert ((index >= 0) & (index < len(ids))).all()
        assert (np.diff(index[~slots.recalled]) > 0).all(), "own slots are out of order"
        assert len(set(index[slots.recalled])) == int(slots.recalled.sum()), "recalled twice"
        twice = np.isin(index, index[slots.recalled]) & ~slots.recalled
        assert slots.pinned[twice].all(), "cached twice"
        assert (slots.pinned == (inside(index, cache.pins) & ~slots.recalled)).all()
        kv = cache.engine.read(0, 0, count)
        exact, half = (CODES, CODES) if kv.dtype == np.int8 else (KEPT_EXACT, KEPT_HALF)
        error = np.abs(kv[0] - expect(ids[index], np.arange(count))).max(axis=(0, 1, 3))
        assert (error <= np.where(slots.recalled, half, exact)).all(), error
        if cache.memory is None:
            assert not slots.archived.any()
            return
        archive = cache.memory.archive
        held = np.zeros(len(ids), dtype=int)
        for record in np.flatnonzero(archive.counts):
            block = archive.read(int(record))
            assert block.start < block.stop <= len(ids)
            crossed = [t for t in cache.turns if block.start < t < block.stop and ids[t] == MARK]
            assert not crossed, "a block crosses a turn's start"
            held[block.start : block.stop] += 1
            place = block.origin + np.arange(block.stop - block.start)
            error = np.abs(block.kv[0] - expect(ids[block.start : block.stop], place))
            assert error.max() <= half
        assert held.max(initial=0) <= 1, "archived twice"
        if archive._next <= archive.most:  # nothing was deleted
            assert held[index[slots.archived]].all(), "the archive lost what it should have"

    return check
