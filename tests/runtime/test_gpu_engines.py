"""The engines for GPUs, TensorRT's and ONNX Runtime's, do what the one for the CPU does.

On a simulated device (see simulated_device.py), and on a real GPU where there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_device import SimulatedCuda, Status

from edgechat.bundle import Bundle, load_bundle
from edgechat.chat import Chat
from edgechat.errors import EngineError
from edgechat.export import export_model, open_source
from edgechat.runtime.cuda import Cuda
from edgechat.runtime.engine import Engine
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.onnx_session import CPU
from edgechat.runtime.policies import make_policy
from edgechat.runtime.sampling import SamplingSettings
from edgechat.settings import Settings

TENSORRT = ("jetson-jp7", "jetson-jp6")
TARGETS = (*TENSORRT, "cuda")
CAPACITY = 96
IDS = np.random.default_rng(0).integers(3, 259, size=200)
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def bundles(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model for each target in float32, so that differences are the engine's own; of an odd
    capacity, so that a layer's cache does not end where the next one may start."""
    folder = tmp_path_factory.mktemp("targets")
    source = open_source(str(tiny_folder), print)
    return {
        target: export_model(source, folder / target, "fp32", capacity=161, target=target).folder
        for target in ("cpu", *TARGETS)
    }


@pytest.fixture
def open_engine(
    cuda: SimulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    opened: list[Engine] = []
    # the simulated GPU's memory is the host's, where ONNX Runtime's CPU finds it by address
    monkeypatch.setattr("edgechat.runtime.onnx_cuda_engine.CUDA", CPU)

    def make(folder: Path, capacity: int = CAPACITY, importance: bool = True) -> Engine:
        from edgechat.runtime.onnx_cuda_engine import OnnxCudaEngine

        bundle = load_bundle(folder)
        if bundle.manifest.graph.dialect == "ort_cuda":
            engine: Engine = OnnxCudaEngine(bundle, capacity, importance)
        else:
            engine = _tensorrt_engine(bundle, tmp_path, capacity, importance)
        opened.append(engine)
        return engine

    yield make
    for engine in opened:
        engine.close()


def _tensorrt_engine(bundle: Bundle, folder: Path, capacity: int, importance: bool) -> Engine:
    from edgechat.runtime.tensorrt.build import Options, build_compact_engine, build_decoder_engine
    from edgechat.runtime.tensorrt.engines import Engines
    from edgechat.runtime.tensorrt_engine import TensorRtEngine

    api, engines = sys.modules["tensorrt"], Engines(folder)
    engines.decoder.write_bytes(build_decoder_engine(api, bundle, Options()).engine)
    engines.compact.write_bytes(build_compact_engine(api, bundle, Options()).engine)
    return TensorRtEngine(bundle, engines, capacity, importance)


def reference(bundles: dict[str, Path], capacity: int = CAPACITY) -> OnnxEngine:
    return OnnxEngine(load_bundle(bundles["cpu"]), capacity, threads=1, importance=True)


def steps(engine: Engine, *pieces: int) -> list[np.ndarray]:
    """Logits after each of successive pieces of IDS."""
    found, length = [], 0
    for count in pieces:
        ids = IDS[None, length : length + count]
        found.append(engine.step(ids, np.array([length], dtype=np.int32))[0, -1].copy())
        length += count
    return found


def same_cache(one: Engine, other: Engine, count: int) -> None:
    a, b = (engine.read(0, 0, count) for engine in (one, other))
    assert np.abs(a - b).max(initial=0) < 1e-4


@pytest.mark.parametrize("target", TARGETS)
def test_steps_of_many_lengths_give_the_logits_the_signals_and_the_cache(
    target: str, bundles: dict[str, Path], open_engine: Open
) -> None:
    engine, other = open_engine(bundles[target]), reference(bundles)
    pieces = (20, 1, 1, 1, 7, 20, 1, 20, 1, 7, 7, 3, 1, 1)
    length = 0
    for count in pieces:
        ids, lengths = IDS[None, length : length + count], np.array([length], dtype=np.int32)
        logits, expected = engine.step(ids, lengths), other.step(ids, lengths)
        assert np.abs(logits - expected).max() < 1e-4
        length += count
        for name, theirs in vars(other.signals).items():
            ours = getattr(engine.signals, name)[:, : theirs.shape[1]]
            used = length if name == "attention_mass" else None
            assert np.abs(ours[:, :used] - theirs[:, :used]).max(initial=0) < 1e-3, name
    same_cache(engine, other, length)


@pytest.mark.parametrize("target", TENSORRT)
def test_shapes_in_use_become_graphs_that_are_launched(
    target: str, bundles: dict[str, Path], open_engine: Open, cuda: SimulatedCuda
) -> None:
    engine = open_engine(bundles[target])
    steps(engine, *[1] * 10)
    assert (cuda.calls["cudaGraphInstantiate"], cuda.calls["cudaGraphLaunch"]) == (1, 9)
    for _ in range(4):
        steps(engine, 30)
    assert (cuda.calls["cudaGraphInstantiate"], cuda.calls["cudaGraphLaunch"]) == (2, 11)
    for count in range(2, 40):  # many shapes, each three times: old graphs go
        for _ in range(3):
            steps(engine, count)
    assert len(cuda.graphs) <= 8
    allocated = cuda.calls["cudaMalloc"]
    steps(engine, *[1] * 5)
    assert cuda.calls["cudaMalloc"] == allocated
    sibling = engine.sibling()
    engine.close()
    assert sibling.step(IDS[None, :2], np.array([0], dtype=np.int32)).shape == (1, 1, 320)
    sibling.close()
    assert not sys.modules["tensorrt"].alive  # contexts and weights


def test_steps_that_cannot_be_recorded_run_plainly(
    bundles: dict[str, Path],
    open_engine: Open,
    cuda: SimulatedCuda,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sys.modules["tensorrt"].recordable = False  # type: ignore[attr-defined]
    engine, other = open_engine(bundles["jetson-jp7"]), reference(bundles)
    ours, theirs = (steps(one, 5, 1, 1, 1, 1) for one in (engine, other))
    assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-4
    assert cuda.calls["cudaGraphInstantiate"] == 0
    assert [m for m in caplog.messages if "without CUDA graphs" in m and "capturing" in m]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kept", [range(60), [0, 1, *range(30, 60)], [0, 5, 9, 20, 58], [59], []])
def test_compaction_moves_and_turns(
    target: str, kept: Any, bundles: dict[str, Path], open_engine: Open
) -> None:
    engine, other = open_engine(bundles[target]), reference(bundles)
    slots = np.array(list(kept), dtype=np.int64)
    for one in (engine, other):
        steps(one, 60)
        one.compact(0, slots)
    same_cache(engine, other, len(slots))
    after = np.array([len(slots)], dtype=np.int32)
    ours, theirs = (one.step(IDS[None, 60:65], after) for one in (engine, other))
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize("target", ["jetson-jp7", "cuda"])
def test_compaction_in_several_goes(
    target: str, bundles: dict[str, Path], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgechat.runtime.tensorrt.build.MOST_KEPT", 7)
    monkeypatch.setattr("edgechat.runtime.onnx_cuda_engine.MOST_KEPT", 7)
    engine, other = open_engine(bundles[target]), reference(bundles)
    kept = np.array([0, 1, 2, *range(10, 50), 55, 57])
    for one in (engine, other):
        steps(one, 60)
        one.compact(0, kept)
        one.compact(0, np.arange(3, len(kept)))  # right behind: nothing may be overwritten early
    same_cache(engine, other, len(kept) - 3)


@pytest.mark.parametrize("target", TARGETS)
def test_slots_are_read_and_written_at_other_places(
    target: str, bundles: dict[str, Path], open_engine: Open
) -> None:
    engine, other = open_engine(bundles[target]), reference(bundles)
    for one in (engine, other):
        steps(one, 60)
        block = one.read(0, 10, 25)
        one.write(0, 60, block, 10)
        one.write(0, 2, block[..., :4, :], 10)
    same_cache(engine, other, 85)
    half = engine.read(0, 0, 5).astype(np.float16)  # as an archive keeps it
    engine.write(0, 1, half, 0)
    with pytest.raises(EngineError, match="another shape"):
        engine.write(0, CAPACITY + 60, block, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_a_cache_streams_rewinds_and_evaluates_as_on_the_cpu(
    target: str, bundles: dict[str, Path], open_engine: Open
) -> None:
    caches = [
        KVCache(engine, make_policy("key", 4, 12))
        for engine in (open_engine(bundles[target], 48), reference(bundles, 48))
    ]
    for cache in caches:
        cache.feed(IDS)
        cache.rewind(195)
    ours, theirs = (cache.feed(IDS[:9]).copy() for cache in caches)
    assert (caches[0].slots.index == caches[1].slots.index).all()
    assert np.abs(ours - theirs).max() < 1e-3
    ours, theirs = (
        np.concatenate(
            [x.copy() for x in KVCache(c.engine, c.policy).feed_chunks(IDS[:40], all_logits=True)]
        )
        for c in caches
    )
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize("target", TARGETS)
def test_a_whole_conversation_is_the_one_of_the_cpu(
    target: str, bundles: dict[str, Path], open_engine: Open, tmp_path: Path
) -> None:
    """Greedy replies, evictions, recall, an edit, a fork and a session."""
    settings = Settings(
        cache_window=CAPACITY - 4,
        archive_mib=8,
        threads=1,
        max_tokens=12,
        sampling=SamplingSettings(temperature=0, repeat_penalty=1),
    )

    def talk(engine: Engine, bundle: Path) -> list[str]:
        with Chat(load_bundle(bundle), settings, CAPACITY, "Be brief.", engine) as chat:
            said = [chat.say(f"word {i} and more of it").text for i in range(8)]
            chat.edit(12, "another word")
            said.append(chat.say("once more").text)
            with chat.fork() as other:
                said += [other.say("aside").text, chat.say("go on").text]
            chat.save(tmp_path / "a.session")
            assert chat.usage is not None
            assert chat.usage.evicted_tokens + chat.usage.reused_tokens > 0
            return said

    expected = talk(reference(bundles), bundles["cpu"])
    assert talk(open_engine(bundles[target]), bundles[target]) == expected


@pytest.mark.parametrize("target", ["jetson-jp7", "cuda"])
def test_failures_are_one_sentence_and_give_everything_back(
    target: str, bundles: dict[str, Path], open_engine: Open, cuda: SimulatedCuda
) -> None:
    folder = bundles[target]
    cases = [
        ("cudaGetDeviceCount", Status.cudaErrorInsufficientDriver, "no NVIDIA driver"),
        ("cudaGetDeviceCount", Status.cudaErrorNoDevice, "no NVIDIA GPU"),
        ("cudaMalloc", Status.cudaErrorMemoryAllocation, "out of memory"),
        ("cudaHostAlloc", Status.cudaErrorMemoryAllocation, "out of memory"),
    ]
    for name, status, message in cases:
        cuda.failing = {name: status}
        with pytest.raises(EngineError, match=message) as caught:
            open_engine(folder)
        assert len(str(caught.value).splitlines()) == 1
        assert not cuda.blocks
    cuda.failing = {}
    cuda.memory = 1000
    with pytest.raises(EngineError, match="MiB are free"):
        open_engine(folder)
    cuda.memory = 1 << 30
    engine = open_engine(folder)
    cuda.failing = {"cudaStreamSynchronize": Status.cudaErrorLaunchFailure}
    with pytest.raises(EngineError, match="cudaErrorLaunchFailure"):
        steps(engine, 5)
    cuda.failing = {}


def test_an_engine_without_the_second_profile_is_refused(
    bundles: dict[str, Path], open_engine: Open
) -> None:
    engine = open_engine(bundles["jetson-jp7"])
    engine._loaded[0].engine.ranges.pop()
    with pytest.raises(EngineError, match="could not take its profile"):
        engine.sibling()


def test_without_the_drivers_library_older_bindings_raise(
    cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(cuda, "cudaGetDeviceCount", missing)
    with pytest.raises(EngineError, match=r"dlopen libcuda\.so\.1.*no NVIDIA driver"):
        Cuda()


def test_a_jetsons_free_memory_includes_what_the_file_cache_gives_up(
    cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgechat.runtime.cuda.meminfo", lambda: {"MemAvailable": 3 << 30})
    device = Cuda()
    assert device.free_memory == cuda.memory == 1 << 30
    cuda.integrated = 1
    assert device.free_memory == 3 << 30
    device.close()


def test_an_engine_of_another_model_is_refused(
    bundles: dict[str, Path], open_engine: Open, tmp_path: Path
) -> None:
    from edgechat.runtime.tensorrt.engines import Engines
    from edgechat.runtime.tensorrt_engine import TensorRtEngine

    open_engine(bundles["jetson-jp6"])  # leaves its files in tmp_path
    with pytest.raises(EngineError, match="contract at 'new_key"):
        TensorRtEngine(load_bundle(bundles["jetson-jp7"]), Engines(tmp_path), CAPACITY)
    bundle = load_bundle(bundles["jetson-jp6"])
    for index, change in ((4, {"shape": ("batch", 2, 48, 16)}), (5, {"dtype": "float16"})):
        inputs = list(bundle.manifest.graph.inputs)
        inputs[index] = replace(inputs[index], **change)
        graph = replace(bundle.manifest.graph, inputs=tuple(inputs))
        edited = replace(bundle, manifest=replace(bundle.manifest, graph=graph))
        with pytest.raises(EngineError, match="contract at 'past_"):
            TensorRtEngine(edited, Engines(tmp_path), CAPACITY)


@pytest.mark.parametrize("target", TARGETS)
def test_on_a_real_gpu_the_talk_is_the_same(
    target: str, tiny_folder: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    """float16 through steps, graphs, a compaction and slots put elsewhere."""
    from edgechat.assembly import make_engine

    source = open_source(str(tiny_folder), print)
    bundle = export_model(source, tmp_path / "b", "fp16", capacity=160, target=target)
    try:
        engine = make_engine(bundle, CAPACITY, importance=True)
    except EngineError as error:
        pytest.skip(f"it cannot run here: {error}")
    other = reference(bundles)
    for one in (engine, other):
        steps(one, 20, 1, 1, 1, 20, 1, 16)
        one.compact(0, np.array([0, 1, *range(20, 60)]))
        one.write(0, 42, one.read(0, 5, 8), 5)
    assert np.abs(engine.read(0, 0, 50) - other.read(0, 0, 50)).max() < 1e-2
    after = np.array([50], dtype=np.int32)
    ours, theirs = (one.step(IDS[None, 60:65], after) for one in (engine, other))
    assert np.abs(ours - theirs).max() < 5e-2
    engine.close()
