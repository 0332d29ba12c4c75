"""A bundle for CUDA runs on the CPU only where that was allowed, and then says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnxruntime as ort
import pytest

from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.errors import EngineError
from edgechat.export import export_model, open_source
from edgechat.runtime.onnx_session import CUDA, check_provider, open_session

Run = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="CUDA may be there"
)


@pytest.fixture(scope="module")
def cuda_bundle(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("cuda") / "b", open_source(str(tiny_folder), print)
    return export_model(source, folder, "int8-weight", target="cuda").folder


def test_the_command_line(run: Run, cuda_bundle: Path, tmp_path: Path) -> None:
    talk = ["run", cuda_bundle, "--prompt", "a", "-n", "3", "--json", "--session", tmp_path / "s"]
    refused = run(*talk, code=1)
    assert refused.stdout == ""
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "no CUDAExecutionProvider" in refused.stderr
    assert "--allow-fallback" in refused.stderr
    allowed = run(*talk, "--allow-fallback")
    assert json.loads(allowed.stdout)["usage"]["fed_tokens"] > 0
    assert allowed.stderr.startswith("note: running on the CPU, slowly, and not on CUDA")
    run(*talk, code=1)  # the session was allowed to, but this time is another
    run(*talk, "--allow-fallback")
    (tmp_path / "t").write_text("a few words to predict")
    run("eval", cuda_bundle, tmp_path / "t", code=1)
    assert "perplexity" in run("eval", cuda_bundle, tmp_path / "t", "--allow-fallback").stdout


def test_in_python(
    cuda_bundle: Path, tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EngineError, match="allow_fallback=True"):
        Chat.open(cuda_bundle)
    with Chat.open(cuda_bundle, allow_fallback=True, threads=1) as chat:
        assert chat.say("a", max_tokens=2).usage.fed_tokens > 0
        assert "not on CUDA" in caplog.text
        chat.save(tmp_path / "s")
    with Chat.load(cuda_bundle, tmp_path / "s", allow_fallback=True) as chat:
        chat.say("b", max_tokens=2)
    with pytest.raises(EngineError, match="no CUDAExecutionProvider"):
        Chat.load(cuda_bundle, tmp_path / "s")
    source = open_source(str(tiny_folder), print)
    exact = export_model(source, tmp_path / "fp32", "fp32", target="cuda")
    with pytest.raises(EngineError, match="no float32 attention"):
        Chat.open(exact.folder)


def test_libraries_that_are_missing_are_not_passed_over(
    cuda_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that is there but does not load leaves all to the CPU."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA.name])
    check_provider(CUDA)
    bundle = load_bundle(cuda_bundle)
    monkeypatch.setattr(
        ort,
        "InferenceSession",
        lambda path, providers, **more: _Session(path, **more),
    )
    with pytest.raises(EngineError, match=r"does not load: .*edgechat doctor") as caught:
        open_session(bundle, bundle.manifest.graph, CUDA)
    assert len(str(caught.value).splitlines()) == 1


_Session = ort.InferenceSession
