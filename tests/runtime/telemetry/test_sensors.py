"""Sensors in made trees, programs that print lines, and energy over time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import machines
import pytest

from edgechat.runtime.telemetry import Device, Reading, Sampler, Span
from edgechat.runtime.telemetry.sampler import Summary
from edgechat.runtime.telemetry.stream import Stream
from edgechat.runtime.telemetry.sysfs import SensorFiles
from edgechat.runtime.telemetry.tegrastats import parse_tegrastats


def test_an_orin(tmp_path: Path) -> None:
    found = SensorFiles(machines.orin_nano(tmp_path)).read()
    assert found.watts == pytest.approx(4.968 * 1.520)
    assert set(found.rails) == {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"}
    assert (found.celsius, found.temperatures["gpu"]) == (52.6, 51.2)
    assert "cv0" not in found.temperatures
    assert (found.gpu_percent, found.gpu_mhz, found.cpu_mhz) == (33, 306, 1510.4)
    assert found.memory_used == (7802844 - 5100000) * 1024
    assert (found.swap_used, found.throttled) == (0, ())
    assert found.throttle_events == {"under-voltage": 0, "over-current": 37}


def test_a_thor(tmp_path: Path) -> None:
    found = SensorFiles(machines.thor(tmp_path)).read()
    assert found.watts == pytest.approx(87.426)
    assert found.rails["VDD_GPU"] == pytest.approx(37.52, abs=0.01)
    assert (found.celsius, found.gpu_mhz, found.gpu_percent) == (109, 1100, None)
    assert found.throttled == ("devfreq-gpu-gpc-0", "gpu-throttle-alert")


def test_an_old_kernel_and_a_gpu_that_is_off(tmp_path: Path) -> None:
    iio = "sys/bus/iio/devices/iio:device0"
    machines.write(
        tmp_path,
        {
            f"{iio}/rail_name_0": "VDD_IN",
            f"{iio}/in_power0_input": 5079,
            f"{iio}/rail_name_1": "VDD_SOC",  # does not answer
            "sys/class/devfreq/17000000.gv11b/cur_freq": 0,
            "sys/devices/gpu.0/load": 0,
        },
    )
    found = SensorFiles(tmp_path).read()
    assert found.rails == {"VDD_IN": 5.079}
    assert (found.gpu_mhz, found.gpu_percent) == (None, 0)


def test_a_pc_measures_power_between_readings(tmp_path: Path) -> None:
    files = SensorFiles(machines.pc(tmp_path))
    begun = time.monotonic()
    first = files.read()
    assert (first.watts, first.cpu_percent, first.celsius) == (None, None, 61)
    time.sleep(0.05)
    counter = "sys/class/powercap/intel-rapl:0/energy_uj"
    machines.write(tmp_path, {counter: 671150, "proc/stat": "cpu  1100 0 500 8200 600 0 0 0 0 0"})
    second = files.read()
    assert second.cpu_percent == 25  # 100 of 400 ticks, 300 idle or waiting for a disk
    assert second.watts is not None  # 1 J, past the counter's wrap
    assert 1 / (time.monotonic() - begun) < second.watts < 1 / 0.05


def test_nothing_to_measure_is_not_zero(tmp_path: Path) -> None:
    assert SensorFiles(tmp_path).read() == Reading()
    span = Span()
    span.begin(0, Reading())
    span.add(2, Reading())
    summary = span.summary()
    assert (summary.watts, summary.joules, summary.per_joule(10)) == (None, None, None)
    assert (summary.celsius_most, summary.gpu_percent, summary.throttled) == (None, None, ())


def _span(*readings: tuple[float, Reading]) -> Summary:
    span = Span()
    span.begin(*readings[0])
    for reading in readings[1:]:
        span.add(*reading)
    return span.summary()


def test_energy_is_power_over_time() -> None:
    found = _span(
        (10, Reading(rails={"VDD_IN": 99}, temperatures={"tj": 50})),
        (11, Reading(rails={"VDD_IN": 6, "VDD_SOC": 1}, temperatures={"tj": 70}, gpu_percent=90)),
        (14, Reading(rails={"VDD_IN": 10, "VDD_SOC": 1}, temperatures={"tj": 60}, gpu_percent=50)),
    )
    assert found.joules == pytest.approx(6 * 1 + 10 * 3)
    assert (found.watts, found.seconds, found.counted_rails) == (9, 4, ("VDD_IN",))
    assert (found.celsius_before, found.celsius_after, found.celsius_most) == (50, 60, 70)
    assert found.gpu_percent == 60
    assert found.per_joule(72) == 2


def test_a_rail_that_misses_a_reading_is_averaged_over_the_others() -> None:
    rails = {"VDD_GPU_SOC": 4.0, "VDD_CPU_CV": 2.0}
    found = _span(
        (0, Reading()), (1, Reading(rails=rails)), (2, Reading(rails={"VDD_CPU_CV": 4.0}))
    )
    assert found.watts == 4 + 3


def test_throttling_is_named_and_counted() -> None:
    quiet = Reading(throttle_events={"over-current": 37, "under-voltage": 2})
    loud = Reading(throttled=("gpu-throttle-alert",), throttle_events={"over-current": 40})
    found = _span((0, quiet), (1, loud), (2, replace(quiet, throttle_events={})))
    assert found.throttled == ("gpu-throttle-alert", "over-current (3 times)")


def _program(tmp_path: Path, name: str, code: str) -> Sequence[str]:
    path = tmp_path / name
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return [str(path)]


def _wait_for_watts(stream: Stream) -> float | None:
    end = time.monotonic() + 20
    while stream.latest.watts is None and time.monotonic() < end:
        time.sleep(0.01)
    return stream.latest.watts


def test_a_program_is_followed_and_ended(tmp_path: Path) -> None:
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n    print('VDD_IN 5079mW/5079mW', flush=True)\n    time.sleep(0.05)\n"
    )
    stream = Stream(_program(tmp_path, "stubborn", code), parse_tegrastats)
    assert _wait_for_watts(stream) == 5.079
    stream.close()
    assert stream._process.returncode is not None
    assert not stream._thread.is_alive()


def test_a_program_that_fails_says_nothing(tmp_path: Path) -> None:
    stream = Stream(_program(tmp_path, "failing", "raise SystemExit(9)"), parse_tegrastats)
    stream._thread.join()
    assert stream.latest == Reading()
    stream.close()


def test_programs_fill_what_sysfs_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Thor the load comes from nvidia-smi, whose power is on the board's rails already."""
    loop = "import time\nwhile True:\n    print({line!r}, flush=True)\n    time.sleep(0.05)\n"
    line = "VDD_GPU 1mW/1mW VIN 16802mW/16802mW tj@30C SWAP 5/2048MB"
    _program(tmp_path, "tegrastats", loop.format(line=line))
    _program(tmp_path, "nvidia-smi", loop.format(line="12, 55, 20.5, 900"))
    monkeypatch.setenv("PATH", str(tmp_path))
    root = machines.thor(tmp_path / "root")
    with Device(root) as device:
        end = time.monotonic() + 20
        while device.read().gpu_percent is None and time.monotonic() < end:
            time.sleep(0.01)
        found = device.read()
    assert (found.gpu_percent, found.celsius, found.gpu_mhz) == (12, 109, 1100)
    assert "GPU board" not in found.rails
    assert found.watts == pytest.approx(87.426)


def test_the_sampler_reads_while_something_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    root = machines.orin_nano(tmp_path)
    with Sampler(Device(root), interval=0.01) as sampler:
        with sampler.span() as span:
            time.sleep(0.05)
            machines.write(root, {"sys/class/hwmon/hwmon3/oc3_event_cnt": 40})
        found = span.summary()
    assert found.watts == pytest.approx(4.968 * 1.520)
    assert found.joules == pytest.approx(4.968 * 1.520 * found.seconds)
    assert found.throttled == ("over-current (3 times)",)
