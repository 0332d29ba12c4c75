"""Engines are built once for a TensorRT, a GPU and a bundle, and never loaded by mistake."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_device import SimulatedCuda, SimulatedTensorRt

from edgechat.bundle import Bundle, load_bundle
from edgechat.chat import Chat
from edgechat.errors import BundleError, EngineError
from edgechat.export import export_model, open_source
from edgechat.runtime.tensorrt.build import Options
from edgechat.runtime.tensorrt.engines import ensure_engines


@pytest.fixture(scope="module")
def exported(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, folder = open_source(str(tiny_folder), print), tmp_path_factory.mktemp("b") / "jp7"
    return export_model(source, folder, "fp16", capacity=64, target="jetson-jp7").folder


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Bundle:
    shutil.copytree(exported, tmp_path / "bundle")
    return load_bundle(tmp_path / "bundle")


@pytest.fixture
def api(cuda: SimulatedCuda) -> Any:
    return sys.modules["tensorrt"]


def folders(bundle: Bundle) -> list[str]:
    return sorted(p.name for p in (bundle.folder / "engines").iterdir() if p.is_dir())


def test_the_second_start_builds_nothing(bundle: Bundle, api: Any) -> None:
    told: list[str] = []
    first = ensure_engines(bundle, say=told.append)
    assert "TensorRT 10.16.1.11 for Orin" in told[0]
    assert api.builds == 2
    again = ensure_engines(load_bundle(bundle.folder), say=told.append)
    assert again == first
    assert (api.builds, len(told)) == (2, 3)  # asked for, decoder, compact
    ensure_engines(bundle, rebuild=True)
    assert api.builds == 4
    assert [p.name for p in sorted((bundle.folder / "engines").glob("*.timings"))]


@pytest.mark.parametrize("change", ["gpu", "capability", "tensorrt"])
def test_another_machine_gets_an_engine_of_its_own(
    change: str, bundle: Bundle, api: Any, cuda: SimulatedCuda
) -> None:
    first = ensure_engines(bundle)
    if change == "gpu":
        cuda.name = b"Orin Nano"
    elif change == "capability":
        cuda.capability = (11, 0)
    else:
        api.__version__ = "10.16.2.1"
    assert ensure_engines(bundle) != first
    assert (api.builds, len(folders(bundle))) == (4, 2)


def test_a_bundle_exported_again_drops_its_old_engines(
    bundle: Bundle, api: Any, exported: Path
) -> None:
    first = ensure_engines(bundle)
    manifest = json.loads((bundle.folder / "edgechat.json").read_text())
    (bundle.folder / "edgechat.json").write_text(json.dumps({**manifest, "name": "other"}))
    assert ensure_engines(load_bundle(bundle.folder)) != first
    assert (api.builds, len(folders(bundle))) == (4, 1)


def damage(folder: Path, what: str) -> None:
    facts = json.loads((folder / "engine.json").read_text())
    engine = folder / "decoder.engine"
    if what == "truncated":
        engine.write_bytes(engine.read_bytes()[:-10])
    elif what == "empty":
        engine.write_bytes(b"")
    elif what == "flipped":
        content = bytearray(engine.read_bytes())
        content[40] ^= 1
        engine.write_bytes(content)
    elif what == "missing":
        (folder / "compact.engine").unlink()
    elif what == "no facts":
        (folder / "engine.json").unlink()
    elif what == "not JSON":
        (folder / "engine.json").write_bytes(b"\xff{")
    elif what == "a list":
        (folder / "engine.json").write_text("[]")
    elif what == "copied from another GPU":
        (folder / "engine.json").write_text(json.dumps({**facts, "gpu": "Thor"}))
    elif what == "copied from another TensorRT":
        (folder / "engine.json").write_text(json.dumps({**facts, "tensorrt": "10.3.0"}))
    elif what == "other files":
        (folder / "engine.json").write_text(json.dumps({**facts, "files": {}}))
    else:
        damage_otherwise(folder, what)


def damage_otherwise(folder: Path, what: str) -> None:
    if what == "huge facts":
        with (folder / "engine.json").open("ab") as file:
            file.truncate(1 << 40)
    elif what == "a pipe":
        (folder / "decoder.engine").unlink()
        os.mkfifo(folder / "decoder.engine")
    elif what == "timings too":
        (folder / "engine.json").unlink()
        (timings,) = folder.parent.glob("*.timings")
        timings.write_bytes(b"damaged")


DAMAGES = ("truncated", "empty", "flipped", "missing", "no facts", "not JSON", "a list")
DAMAGES += ("copied from another GPU", "copied from another TensorRT", "other files")
DAMAGES += ("huge facts", "a pipe", "timings too")


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_damaged_or_of_elsewhere_is_built_again(
    what: str, bundle: Bundle, api: Any
) -> None:
    first = ensure_engines(bundle)
    damage(first.folder, what)
    told: list[str] = []
    again = ensure_engines(bundle, say=told.append)
    assert api.builds == 4
    assert told
    assert again.decoder.read_bytes().endswith(b"end")
    assert ensure_engines(bundle) == again
    assert api.builds == 4


def test_a_full_disk_leaves_nothing(
    bundle: Bundle, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_bytes

    def full(path: Path, content: Any) -> int:
        if path.name == "compact.engine":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BundleError, match="disk is full"):
        ensure_engines(bundle)
    assert folders(bundle) == []
    monkeypatch.undo()
    usage = shutil.disk_usage(bundle.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises((BundleError, EngineError)) as caught:
        ensure_engines(bundle)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_of_engines_that_leads_elsewhere_is_refused(
    bundle: Bundle, api: Any, tmp_path: Path
) -> None:
    theirs = tmp_path / "elsewhere" / "tensorrt-10-of-another-bundle"
    theirs.mkdir(parents=True)
    (bundle.folder / "engines").symlink_to(theirs.parent)
    with pytest.raises(BundleError, match="is a link"):
        ensure_engines(bundle)
    assert list(theirs.parent.iterdir()) == [theirs]
    (bundle.folder / "engines").unlink()
    (bundle.folder / "engines").write_text("a file")
    with pytest.raises(BundleError, match="could not be written"):
        ensure_engines(bundle)


def test_the_engine_another_process_has_just_built_is_replaced(
    bundle: Bundle, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, real, raced = ensure_engines(bundle), Path.rename, []

    def rename(path: Path, target: Path) -> Path:
        if target == engines.folder and not raced:  # between the old one's going and our coming
            raced.append(path)
            shutil.copytree(path, target)
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        assert ensure_engines(bundle, rebuild=True) == engines
    assert raced
    assert ensure_engines(bundle) == engines
    assert api.builds == 4
    assert not list(engines.folder.parent.glob(".*"))


EDITS: list[tuple[str, Any]] = [
    ("max_capacity", lambda m: m.update(max_capacity=32)),
    ("kv_dtype", lambda m: m.update(kv_dtype="int8")),
    ("dims", lambda m: m["dims"].update(vocab_size=300)),
    ("a type", lambda m: m["graph"]["inputs"][0].update(dtype="float32")),
    ("a name", lambda m: m["graph"]["outputs"][0].update(name="scores")),
    ("a shape", lambda m: m["compact"]["inputs"][2].update(shape=[1, 2, "kept_slots", 16])),
    ("a scalar", lambda m: m["graph"]["inputs"][2].update(shape=[])),
    ("layers", lambda m: m["dims"].update(num_layers=4)),
    ("compact", lambda m: m.update(compact=None)),
]


@pytest.mark.parametrize(("what", "edit"), EDITS, ids=[what for what, _ in EDITS])
def test_an_edited_manifest_is_refused_before_anything_is_built(
    what: str, edit: Any, bundle: Bundle, api: Any
) -> None:
    path = bundle.folder / "edgechat.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises((EngineError, BundleError), match="export") as caught:
        ensure_engines(load_bundle(bundle.folder))
    assert len(str(caught.value).splitlines()) == 1
    assert api.builds == 0


def test_a_cancelled_or_killed_build_leaves_nothing(bundle: Bundle, api: Any) -> None:
    with pytest.raises(EngineError, match="cancelled"):
        ensure_engines(bundle, Options(cancelled=lambda: True))
    assert folders(bundle) == []
    engines = ensure_engines(bundle)
    left = engines.folder.with_name(f".{engines.folder.name}.partial-999999999")
    left.mkdir()  # as kill -9 leaves it
    (left / "decoder.engine").write_bytes(b"half")
    ensure_engines(bundle, rebuild=True)
    assert not left.exists()


def test_bundles_that_cannot_be_built_say_why(
    tiny_folder: Path, bundle: Bundle, api: Any, tmp_path: Path
) -> None:
    api.__version__ = "10.3.0.30"
    with pytest.raises(EngineError, match="jetson-jp6, or update JetPack"):
        ensure_engines(bundle)
    api.__version__ = "8.6.1"
    with pytest.raises(EngineError, match=r"older than 10\.3"):
        ensure_engines(bundle)
    source = open_source(str(tiny_folder), print)
    twin = export_model(source, tmp_path / "twin", "fp32", target="jetson-jp6")
    with pytest.raises(EngineError, match="no float32 attention"):
        ensure_engines(twin)
    cpu = export_model(source, tmp_path / "cpu", "fp32")
    with pytest.raises(EngineError, match="needs no building"):
        ensure_engines(cpu)
    odd = bundle.folder.with_name("b\udcff")
    bundle.folder.rename(odd)
    api.__version__ = "10.16.1.11"
    with pytest.raises(EngineError, match="rename the folder"):
        ensure_engines(load_bundle(odd))
    assert api.builds == 0


def test_a_chat_builds_on_first_use_and_tells(
    bundle: Bundle, api: Any, cuda: SimulatedCuda, caplog: pytest.LogCaptureFixture
) -> None:
    for builds in (2, 2):
        with Chat.open(bundle.folder, max_tokens=3, window=48) as chat:
            assert chat.say("hello").usage.fed_tokens > 0
        assert api.builds == builds
    assert sum("takes some minutes" in message for message in caplog.messages) == 1


def test_without_a_driver_the_real_cuda_says_so(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    if runtime.cudaGetDeviceCount()[0] == runtime.cudaError_t.cudaSuccess:
        pytest.skip("there is a GPU")
    monkeypatch.setitem(sys.modules, "tensorrt", SimulatedTensorRt(SimulatedCuda()))
    with pytest.raises(EngineError, match="no NVIDIA") as caught:
        ensure_engines(bundle)
    assert len(str(caught.value).splitlines()) == 1


def test_the_command_builds_with_progress_and_reports(
    bundle: Bundle, api: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgechat.cli.app import app

    for builds in (2, 2):
        with pytest.raises(SystemExit) as ended:
            app(["build", str(bundle.folder), "--json"])
        assert ended.value.code == 0
        assert api.builds == builds
        shown = capsys.readouterr()
        data = json.loads(shown.out)
        assert Path(data["folder"]).parent == bundle.folder.absolute() / "engines"
        assert ("decoder.engine" in shown.err) == (builds == 2 and "building" in shown.err)


def test_ctrl_c_ends_a_build_from_any_thread(
    bundle: Bundle, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgechat.cli.build import prepare

    def press(options: Options) -> bool:
        """As TensorRT asks: in a thread of its own, while the main one waits."""
        os.kill(os.getpid(), signal.SIGINT)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(options.cancelled).result()

    def monitor(module: Any, options: Options) -> Any:
        return SimpleNamespace(
            phase_start=lambda *_: None, step_complete=lambda *_: not press(options)
        )

    monkeypatch.setattr("edgechat.runtime.tensorrt.build._monitor", monitor)
    with pytest.raises(KeyboardInterrupt):
        prepare(bundle)
    assert folders(bundle) == []
