"""``edgechat doctor`` on the machine that runs the tests, and on made ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machines
import pytest

from edgechat.doctor import Report, examine
from edgechat.doctor.ask import Answer, ask
from edgechat.export import export_model, open_source
from edgechat.settings import load_profile

Run = Callable[..., subprocess.CompletedProcess[str]]
GPU = {
    "name": "Orin",
    "compute_capability": "8.7",
    "memory": 8 << 30,
    "free_memory": 4 << 30,
    "integrated": True,
}
ORIN: dict[str, dict[str, Any]] = {
    "onnxruntime": {"error": "No module named 'onnxruntime'"},
    "driver": {"version": "12.6"},
    "cuda": {"version": "12.9.1", "runtime": "12.9", "gpu": GPU},
    "cudnn": {"version": "9.3.0"},
    "tensorrt": {"version": "10.3.0"},
    "engine": {"why_build": "there is no engine for this TensorRT, GPU and bundle yet"},
}


@pytest.fixture(scope="module")
def jetson_bundle(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "tiny-jp6"
    source = open_source(str(tiny_folder), print)
    return export_model(source, target, precision="int8", target="jetson-jp6").folder


def _on_orin(bundle: Path | None, root: Path, **changed: dict[str, Any]) -> Report:
    answers = {**ORIN, **changed}
    return examine(
        bundle,
        load_profile("chat"),
        machines.orin_nano(root),
        run=lambda command: Answer("NV Power Mode: MAXN\n0\n"),
        ask=lambda probe, *arguments: answers[probe],
    )


def test_this_machine(run: Run) -> None:
    done = run("doctor")
    for word in ("memory", "ONNX Runtime", "✓  CPUExecutionProvider", "--target cpu", "TensorRT"):
        assert word in done.stdout
    report = json.loads(run("doctor", "--json").stdout)
    assert report["ok"]
    assert report["targets"]["cpu"] == {"outcome": "run", "gaps": [], "why_build": None}
    assert report["machine"]["sensors"]["memory_total"] > 0


def test_a_bundle_that_runs_here(run: Run, tiny_bundle: Path) -> None:
    report = json.loads(run("doctor", tiny_bundle, "--json", "--profile", "npc").stdout)
    assert report["verdict"]["outcome"] == "run"
    lines = report["needs"]["plan"]["talking"]
    assert 0 < sum(line["bytes"] for line in lines) < 1 << 30


def test_a_jetson_bundle_without_a_driver(run: Run, jetson_bundle: Path) -> None:
    if "version" in ask("driver"):
        pytest.skip("this machine has an NVIDIA driver")
    done = run("doctor", jetson_bundle, code=1)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cannot run here: there is no NVIDIA driver" in done.stderr
    assert "--target cpu" in done.stderr
    assert "→ on a Jetson it comes with JetPack" in done.stdout
    report = json.loads(run("doctor", jetson_bundle, "--json", code=1).stdout)
    assert report["verdict"]["outcome"] == "cannot"
    assert all(gap["problem"] and gap["remedy"] for gap in report["verdict"]["gaps"])


def test_without_onnx_runtime(
    run: Run, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('not for this Python')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "run here: ONNX Runtime cannot be loaded" in run("doctor", tiny_bundle, code=1).stderr
    told = run("run", tiny_bundle, "--prompt", "a", code=1).stderr
    assert "not for this Python" in told
    assert "edgechat[cpu]" in told


def test_a_damaged_bundle(run: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "edgechat.json").write_text("{}")
    done = run("doctor", tmp_path, code=1)
    assert "schema" in done.stderr
    assert "export the bundle again" in done.stderr
    assert "CPUExecutionProvider" in done.stdout


def test_an_orin_builds_first(jetson_bundle: Path, tmp_path: Path) -> None:
    report = _on_orin(jetson_bundle, tmp_path)
    assert report.ok and report.verdict is not None
    assert report.verdict.outcome == "build"
    told = {row.name: row.text for row in report.findings["Bundle"]}
    assert "there is no engine" in told["engine"]
    assert "build its engine first" in told["verdict"]
    ready = _on_orin(jetson_bundle, tmp_path, engine={})
    assert ready.verdict is not None and ready.verdict.outcome == "run"


def test_an_orin_without_onnx_runtime_is_fine_for_tensorrt(tmp_path: Path) -> None:
    report = _on_orin(None, tmp_path)
    assert report.ok
    outcomes = {target: verdict.outcome for target, verdict in report.targets.items()}
    assert outcomes == {
        "cpu": "cannot",
        "cuda": "cannot",
        "jetson-jp7": "cannot",  # needs TensorRT 10.15
        "jetson-jp6": "run",
    }


def test_an_engine_that_cannot_be_looked_for(jetson_bundle: Path, tmp_path: Path) -> None:
    report = _on_orin(jetson_bundle, tmp_path, engine={"error": "CUDA failed in x; reboot."})
    assert report.verdict is not None
    assert str(report.verdict.gaps[0]) == "CUDA failed in x; reboot."


def test_settings_that_the_bundle_cannot_serve(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    source = open_source(str(tiny_folder), print)
    bundle = export_model(source, tmp_path / "b", precision="fp32", importance=False).folder
    done = run("doctor", bundle, code=1)
    assert "--no-importance" in done.stderr
