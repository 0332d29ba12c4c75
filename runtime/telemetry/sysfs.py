"""Sensors that the kernel shows as files, on Jetsons and PCs. No rights are needed but for RAPL.

hwmon, thermal and powercap files are described in the kernel's Documentation/ABI/testing/sysfs-*;
the Jetson's own ones in NVIDIA's Jetson Linux Developer Guide, "Platform Power and Performance".
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from edgechat.runtime.telemetry.reading import Reading, real_temperatures

PC_SENSORS = ("coretemp", "k10temp", "zenpower")  # hwmon drivers of Intel's and AMD's chips
GPU_CLOCKS = ("gpu-gpc", "gpu", "ga10b", "gv11b", "gp10b")  # Thor; Orin, Nano; Orin R35; older
# Cooling devices of these types that are above 0 hold a clock back; others are fans and power caps.
HOLDS_BACK = ("cpufreq", "devfreq", "thermal-cpufreq", "thermal-devfreq", "Processor")


class SensorFiles:
    """The sensors under ``root``, found once, since only their values change.

    Loads and RAPL's power are means since the reading before, so the first one has none.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._rails = [*_hwmon_rails(root), *_iio_rails(root)]
        self._packages = list(_rapl_packages(root))
        self._temperatures = [*_thermal_zones(root), *_pc_temperatures(root)]
        self._gpu_clock, self._gpu_load = _gpu_files(root)
        self._cpu_clocks = _glob(root, "sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq")
        self._coolers = list(_coolers(root))
        self._events = list(_throttle_counters(root))
        self._energy: dict[str, tuple[float, float]] = {}
        self._ticks: tuple[float, float] | None = None

    @property
    def measures_power(self) -> bool:
        return bool(self._rails or self._packages)

    def read(self) -> Reading:
        memory = meminfo(self._root)
        total, available = memory.get("MemTotal"), memory.get("MemAvailable")
        swap, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
        load = None if self._gpu_load is None else number(self._gpu_load)
        clock = None if self._gpu_clock is None else number(self._gpu_clock)
        return Reading(
            rails=dict(chain(self._rail_watts(), self._package_watts())),
            temperatures=real_temperatures(_scaled(self._temperatures, 1e-3)),
            cpu_percent=self._cpu_percent(),
            gpu_percent=None if load is None else load / 10,
            cpu_mhz=max(filter(None, map(number, self._cpu_clocks)), default=0) / 1e3 or None,
            gpu_mhz=clock / 1e6 if clock else None,  # 0: the GPU is off
            memory_used=None if total is None or available is None else total - available,
            memory_total=total,
            swap_used=None if swap is None or swap_free is None else swap - swap_free,
            swap_total=swap,
            throttled=tuple(name for name, state in _scaled(self._coolers) if state > 0),
            throttle_events=_summed(self._events),
        )

    def _rail_watts(self) -> Iterator[tuple[str, float]]:
        """``power*_input`` counts µW, ``in*_input`` mV and ``curr*_input`` mA, iio mW."""
        for name, files, scale in self._rails:
            values = [number(file) for file in files]
            watts = scale
            for value in values:
                if value is None:
                    break
                watts *= value
            else:
                yield name, watts

    def _package_watts(self) -> Iterator[tuple[str, float]]:
        for name, file, wraps_at in self._packages:
            now, microjoules = time.monotonic(), number(file)
            if microjoules is None:  # root only, on most systems
                continue
            before = self._energy.get(name)
            self._energy[name] = now, microjoules
            if before is not None and now > before[0]:
                used = microjoules - before[1]
                yield name, (used if used >= 0 else used + wraps_at) / 1e6 / (now - before[0])

    def _cpu_percent(self) -> float | None:
        """From /proc/stat's first line: user, nice, system, idle, iowait, irq, softirq, steal."""
        words = (text(self._root / "proc/stat") or "").partition("\n")[0].split()[1:9]
        if len(words) < 5 or not all(word.isdecimal() for word in words):
            return None
        ticks = [float(word) for word in words]
        before, self._ticks = self._ticks, (sum(ticks), ticks[3] + ticks[4])
        if before is None or self._ticks[0] <= before[0]:
            return None
        return 100 * (1 - (self._ticks[1] - before[1]) / (self._ticks[0] - before[0]))


def text(path: Path) -> str | None:
    """A small file's text; None when it is not there or the sensor does not answer: one in a
    part of the chip that is off fails with EAGAIN, which an unbuffered read makes None."""
    try:
        with path.open("rb", buffering=0) as file:
            data = file.read(1 << 16)
    except OSError:
        return None
    return None if data is None else data.decode(errors="replace").strip()


def number(path: Path) -> float | None:
    """A file's number, or None."""
    try:
        return float(text(path) or "")
    except ValueError:
        return None


def _glob(root: Path, pattern: str) -> list[Path]:
    """In the order of the numbers in the names: hwmon2 before hwmon10."""
    return sorted(root.glob(pattern), key=lambda path: (len(path.parts[-2]), str(path)))


def _scaled(files: Iterable[tuple[str, Path]], scale: float = 1) -> Iterator[tuple[str, float]]:
    for name, file in files:
        value = number(file)
        if value is not None:
            yield name, value * scale


def _summed(files: Iterable[tuple[str, Path]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, value in _scaled(files):
        counts[name] = counts.get(name, 0) + int(value)
    return counts


def _hwmon_rails(root: Path) -> Iterator[tuple[str, list[Path], float]]:
    """Channels of TI's INA power monitors: name, files whose product is the power, scale to W.

    A channel without a current, such as the INA3221's sum of shunt voltages, is no rail.
    """
    for chip in _glob(root, "sys/class/hwmon/hwmon*/name"):
        driver = text(chip) or ""
        if not driver.startswith("ina"):
            continue
        folder = chip.parent
        for current in sorted(folder.glob("curr*_input")):
            channel = current.name.removeprefix("curr").removesuffix("_input")
            name = text(folder / f"in{channel}_label")
            if not name and channel == "1":
                name = text(folder / "label")
            if not name and driver == "ina238":  # Thor's, at the board's input
                name = "VIN"
            power = folder / f"power{channel}_input"
            if not name:
                continue  # nobody knows what it measures
            if power.exists():
                yield name, [power], 1e-6
            else:
                yield name, [folder / f"in{channel}_input", current], 1e-6


def _iio_rails(root: Path) -> Iterator[tuple[str, list[Path], float]]:
    """The same monitors under R32's kernel."""
    for label in _glob(root, "sys/bus/iio/devices/iio:device*/rail_name_*"):
        channel = label.name.rpartition("_")[2]
        name, power = text(label), label.parent / f"in_power{channel}_input"
        if name and power.exists():
            yield name, [power], 1e-3


def _rapl_packages(root: Path) -> Iterator[tuple[str, Path, float]]:
    """Energy counters of Intel's and AMD's processors: name, file in µJ, where it starts anew."""
    for label in _glob(root, "sys/class/powercap/intel-rapl:*/name"):
        name, wraps_at = text(label) or "", number(label.parent / "max_energy_range_uj")
        energy = label.parent / "energy_uj"
        if name.startswith("package") and wraps_at and number(energy) is not None:
            yield name, energy, wraps_at


def _thermal_zones(root: Path) -> Iterator[tuple[str, Path]]:
    for kind in _glob(root, "sys/class/thermal/thermal_zone*/type"):
        yield text(kind) or kind.parent.name, kind.parent / "temp"


def _pc_temperatures(root: Path) -> Iterator[tuple[str, Path]]:
    for chip in _glob(root, "sys/class/hwmon/hwmon*/name"):
        if text(chip) in PC_SENSORS:
            for file in sorted(chip.parent.glob("temp*_input")):
                label = text(file.with_name(file.name.replace("_input", "_label")))
                yield label or f"cpu {file.name.removesuffix('_input')}", file


def _gpu_files(root: Path) -> tuple[Path | None, Path | None]:
    """The GPU's clock in Hz and its load in thousandths, for which Thor has no file."""
    found = [path.parent for path in root.glob("sys/class/devfreq/*/cur_freq")]
    clocks = [f for kind in GPU_CLOCKS for f in sorted(found) if kind in f.name]
    loads = [
        *(clock / "device/load" for clock in clocks),
        root / "sys/devices/platform/gpu.0/load",
        root / "sys/devices/gpu.0/load",
    ]
    clock = clocks[0] / "cur_freq" if clocks else None
    return clock, next((load for load in loads if number(load) is not None), None)


def _coolers(root: Path) -> Iterator[tuple[str, Path]]:
    for kind in _glob(root, "sys/class/thermal/cooling_device*/type"):
        name = text(kind) or ""
        if name.startswith(HOLDS_BACK) or name.endswith("-throttle-alert"):
            yield name, kind.parent / "cur_state"


def _throttle_counters(root: Path) -> Iterator[tuple[str, Path]]:
    """Orin's and Thor's counters of over-current (1: under-voltage, 2: mean, 3: momentary) and
    Intel's of overheating."""
    for chip in _glob(root, "sys/class/hwmon/hwmon*/name"):
        if text(chip) == "soctherm_oc":
            for file in sorted(chip.parent.glob("oc*_event_cnt")):
                under_voltage = file.name.startswith("oc1_")
                yield "under-voltage" if under_voltage else "over-current", file
    for file in root.glob("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"):
        yield "overheating", file


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in (text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal() and words[1:] == ["kB"]:
            found[name] = int(words[0]) * 1024
    return found


def highest_clocks(root: Path = Path("/")) -> tuple[float | None, float | None]:
    """Highest MHz that the CPU and the GPU may run at: the power mode lowers it."""
    limits = _glob(root, "sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq")
    cpu = max(filter(None, map(number, limits)), default=0)
    clock, _ = _gpu_files(root)
    gpu = None if clock is None else number(clock.with_name("max_freq"))
    return cpu / 1e3 or None, gpu / 1e6 if gpu else None
