"""What the device measures is told in ``run --stats`` and ``bench``, and only that."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgechat.benchmark import DECODE_STEPS

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tegrastats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name that prints an Orin Nano's line."""
    path = tmp_path / "tegrastats"
    line = "RAM 3645/7620MB (lfb 63x4MB) gpu@44.5C tj@45.25C VDD_IN 2957mW/2957mW VDD_SOC 9mW/9mW"
    path.write_text(f"#!/bin/sh\nwhile :; do echo '{line}'; /bin/sleep 0.05; done\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_run_tells_power_and_temperature(run: Run, endless: Path, tegrastats: None) -> None:
    done = run("run", endless, "--stats", "--json", "-n", "3000", *["--prompt", "a"] * 2)
    assert " · 3.0 W · 45 °C]" in done.stderr
    device = json.loads(done.stdout.splitlines()[1])["device"]
    assert device["watts"] == pytest.approx(2.957)
    assert device["counted_rails"] == ["VDD_IN"]
    assert device["joules"] == pytest.approx(2.957 * device["seconds"])
    assert "device" not in json.loads(
        run("run", endless, "-n", "1", "--json", "--prompt", "a").stdout
    )


def test_bench_tells_tokens_a_joule(run: Run, tiny_bundle: Path, tegrastats: None) -> None:
    done = run("bench", tiny_bundle, "--json", "--rounds", "1", "--capacity", "200")
    data = json.loads(done.stdout)
    assert data["device"]["celsius_before"] == data["device"]["celsius_after"] == 45.25
    decode = data["decode_device"]
    assert decode["watts"] == pytest.approx(2.957)
    rounds = data["tokens_per_joule"] * decode["joules"] / DECODE_STEPS
    assert rounds == pytest.approx(round(rounds))  # only whole ones are decoded
    assert rounds >= 1


def test_what_is_not_measured_is_said(
    run: Run, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this machine measures: a virtual one often nothing at all."""
    monkeypatch.setenv("PATH", "")
    told = run("bench", tiny_bundle, "--rounds", "1", "--capacity", "200").stdout
    assert ("power not measured" in told) != ("tokens/J" in told)
    assert ("temperature not measured" in told) != ("°C before" in told)
