"""What is told of made machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import machines
import pytest

from edgechat.doctor.ask import Answer
from edgechat.doctor.findings import Finding, machine_findings
from edgechat.doctor.machine import Machine, look_at_machine

JETPACK = """
Package: nvidia-jetpack
Status: install ok installed
Version: 6.2.1+b38

Package: libnvinfer10
Status: install ok installed
Version: 10.3.0.30-1+cuda12.5

Package: tensorrt
Status: deinstall ok config-files
Version: 10.7.0
"""


def _nvpmodel(mode: str) -> Answer:
    return Answer(f"NV Power Mode: {mode}\n0\n")


def _look(root: Path, answer: Answer) -> Machine:
    asked: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> Answer:
        asked.append(command)
        return answer

    found = look_at_machine(root, run)
    assert asked == ([["nvpmodel", "-q"]] if found.is_jetson else [])
    return found


def _row(machine: Machine, name: str) -> Finding:
    (row,) = [row for row in machine_findings(machine) if row.name == name]
    return row


def test_an_orin(tmp_path: Path) -> None:
    machines.write(tmp_path, {"var/lib/dpkg/status": JETPACK})
    found = _look(machines.orin_nano(tmp_path), _nvpmodel("15W"))
    assert (found.l4t, found.jetpack, found.jetpack_major) == ("R36.4.4", "6.2.1", 6)
    assert found.packages == {
        "nvidia-jetpack": "6.2.1+b38",
        "libnvinfer10": "10.3.0.30-1+cuda12.5",
    }
    assert "Orin Nano" in _row(found, "board").text
    assert "JetPack 6.2.1, L4T R36.4.4" in _row(found, "board").text
    assert _row(found, "power mode").text == "15W"
    assert "nvpmodel" in _row(found, "power mode").remedy
    assert _row(found, "GPU clock").text == "306 MHz of 1,020"
    assert _row(found, "temperature").text == "53 °C"
    throttling = _row(found, "throttling")
    assert throttling.text == "none now; since the start: over-current 37 times"
    assert "power supply" in throttling.remedy
    assert "7.4 GiB, 4.9 GiB free; 3.7 GiB of swap, 0.0 GiB used" in _row(found, "memory").text


def test_a_hot_thor(tmp_path: Path) -> None:
    found = _look(machines.thor(tmp_path), _nvpmodel("MAXN"))
    assert (found.l4t, found.jetpack) == ("R38.4.0", "7")
    assert _row(found, "power mode").state == "good"
    throttling = _row(found, "throttling")
    assert throttling.state == "bad"
    assert "gpu-throttle-alert" in throttling.text
    assert "no swap" in _row(found, "memory").text


def test_a_jetson_that_hides_everything(tmp_path: Path) -> None:
    """A container: no release file, no nvpmodel, sensors that do not answer."""
    core = "Package: nvidia-l4t-core\nStatus: install ok installed\nVersion: 35.6.0-2024\n"
    machines.write(tmp_path, {"var/lib/dpkg/status": core, ".dockerenv": ""})
    found = _look(tmp_path, Answer(error="No such file or directory"))
    assert (found.l4t, found.jetpack, found.power_mode) == ("R35.6.0", "5", None)
    assert _row(found, "power mode").text == "nvpmodel does not tell"
    assert _row(found, "temperature").text == "not measured"
    assert _row(found, "memory").text == "unknown"
    assert "in a container" in _row(found, "system").text


def test_a_pc(tmp_path: Path) -> None:
    found = _look(machines.pc(tmp_path), Answer())
    assert not found.is_jetson
    names = {row.name for row in machine_findings(found)}
    assert names.isdisjoint({"board", "power mode", "GPU clock", "throttling"})


@pytest.mark.parametrize("setting", ["always [madvise] never", "always madvise [never]"])
def test_huge_pages(setting: str, tmp_path: Path) -> None:
    machines.write(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": setting})
    row = _row(_look(tmp_path, Answer()), "huge pages")
    assert (row.state == "good") == ("[madvise]" in setting)
    assert ("tee" in row.remedy) == ("[never]" in setting)
