"""What the machine is: system, board, processor, memory, disk, power mode, sensors."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgechat.doctor.ask import Answer, run_program
from edgechat.paths import cache_folder
from edgechat.runtime.cores import usable_cores
from edgechat.runtime.telemetry import Reading
from edgechat.runtime.telemetry.sysfs import SensorFiles, highest_clocks, text

JETPACKS = {32: "4", 34: "5", 35: "5", 36: "6", 38: "7", 39: "7"}  # by release of L4T
RELEASE = re.compile(r"R(\d+) \(release\), REVISION: ([\d.]+)")
PACKAGES = re.compile(r"nvidia-jetpack|nvidia-l4t-core|tensorrt|libnvinfer\d+|python3-libnvinfer")


@dataclass(frozen=True)
class Machine:
    """Facts of the machine, sizes in bytes, clocks in MHz; None: it does not say.

    ``board``, ``l4t`` and ``jetpack`` are a Jetson's; ``packages`` are the versions of NVIDIA's
    Debian packages. ``power_mode`` is ``nvpmodel``'s; ``huge_pages`` the kernel's setting.
    """

    system: str
    architecture: str
    python: str
    in_virtual_environment: bool
    sees_system_packages: bool
    in_container: bool
    processor: str | None
    cores: int
    board: str | None
    l4t: str | None
    jetpack: str | None
    packages: dict[str, str]
    power_mode: str | None
    huge_pages: str | None
    cache_folder: str
    cache_folder_free: int | None
    cpu_mhz_most: float | None
    gpu_mhz_most: float | None
    sensors: Reading

    @property
    def is_jetson(self) -> bool:
        return self.l4t is not None or "jetson" in (self.board or "").lower()

    @property
    def jetpack_major(self) -> int | None:
        return int(self.jetpack.partition(".")[0]) if self.jetpack else None


def look_at_machine(
    root: Path = Path("/"), run: Callable[[Sequence[str]], Answer] = run_program
) -> Machine:
    """Reads files under ``root``; programs are asked by ``run``."""
    packages = _packages(root)
    l4t = _l4t(root, packages)
    jetpack = packages.get("nvidia-jetpack", "").partition("+")[0] or None
    if jetpack is None and l4t is not None:
        jetpack = JETPACKS.get(int(l4t[1:].partition(".")[0]))
    release = text(root / "etc/os-release") or ""
    named = re.search(r'^PRETTY_NAME="?(.*?)"?$', release, re.MULTILINE)
    model = re.search(r"^model name\s*: (.*)$", text(root / "proc/cpuinfo") or "", re.MULTILINE)
    folder = cache_folder()
    cpu, gpu = highest_clocks(root)
    return Machine(
        system=named[1] if named else f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        python=platform.python_version(),
        in_virtual_environment=sys.prefix != sys.base_prefix,
        sees_system_packages=_sees_system_packages(Path(sys.prefix)),
        in_container=(root / ".dockerenv").exists() or (root / "run/.containerenv").exists(),
        processor=model[1] if model else None,
        cores=usable_cores(),
        board=(text(root / "proc/device-tree/model") or "").strip("\0 \n") or None,
        l4t=l4t,
        jetpack=jetpack,
        packages=packages,
        power_mode=_power_mode(run) if l4t is not None else None,
        huge_pages=_chosen(text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        cache_folder=str(folder),
        cache_folder_free=free_space(folder),
        cpu_mhz_most=cpu,
        gpu_mhz_most=gpu,
        sensors=SensorFiles(root).read(),
    )


def free_space(folder: Path) -> int | None:
    """Bytes free where ``folder`` is, or will be; None when nobody can tell."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _packages(root: Path) -> dict[str, str]:
    """Version of each installed NVIDIA package that matters, from dpkg's own list."""
    try:
        lines = (root / "var/lib/dpkg/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found, name, installed = {}, "", False
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "Package":
            name, installed = value, False
        elif key == "Status":
            installed = value.endswith(" installed")
        elif key == "Version" and installed and PACKAGES.fullmatch(name):
            found[name] = value
    return found


def _l4t(root: Path, packages: dict[str, str]) -> str | None:
    """Such as R36.4.4; containers often have neither file nor package."""
    stated = RELEASE.search(text(root / "etc/nv_tegra_release") or "")
    if stated:
        return f"R{stated[1]}.{stated[2]}"
    core = packages.get("nvidia-l4t-core")
    return f"R{core.partition('-')[0]}" if core and core[0].isdigit() else None


def _power_mode(run: Callable[[Sequence[str]], Answer]) -> str | None:
    """``NV Power Mode: 15W``; None when nvpmodel is not there or may not tell."""
    stated = re.search(r"NV Power Mode: *(\S.*)", run(["nvpmodel", "-q"]).text)
    return stated[1].strip() if stated else None


def _sees_system_packages(prefix: Path) -> bool:
    """Whether system-wide Python packages can be imported."""
    if sys.prefix == sys.base_prefix:
        return True
    settings = text(prefix / "pyvenv.cfg") or ""
    return re.search(r"^include-system-site-packages *= *true", settings, re.MULTILINE) is not None


def _chosen(setting: str | None) -> str | None:
    """``madvise`` of ``always [madvise] never``."""
    chosen = re.search(r"\[(\w+)\]", setting or "")
    return chosen[1] if chosen else None


def is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)
