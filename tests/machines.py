"""Made /sys, /proc and /etc trees of machines, as far as edgechat reads them.

Names, units and values are those that such machines show; the sources are recorded in public
repositories and NVIDIA's documentation.
"""

from __future__ import annotations

from pathlib import Path


def write(root: Path, files: dict[str, object]) -> Path:
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n", encoding="utf-8")
    return root


def meminfo(total: int, available: int, swap: int, swap_free: int) -> str:
    """/proc/meminfo, values in kB."""
    return (
        f"MemTotal:       {total} kB\nMemFree:        1000 kB\nMemAvailable:   {available} kB\n"
        f"SwapTotal:      {swap} kB\nSwapFree:       {swap_free} kB\nHugePages_Total:       0"
    )


def orin_nano(root: Path) -> Path:
    """Jetson Orin Nano, JetPack 6.2 (L4T R36.4.4), idle; its cv zones are off."""
    zones = {"cpu": 52500, "gpu": 51200, "soc0": 50100, "soc1": 50000, "soc2": 49900, "tj": 52600}
    files: dict[str, object] = {
        "proc/meminfo": meminfo(7802844, 5100000, 3901408, 3901408),
        "proc/stat": "cpu  1000 0 500 8000 500 0 0 0 0 0",
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit\0",
        "etc/nv_tegra_release": "# R36 (release), REVISION: 4.4, GCID: 41062509, BOARD: generic, "
        "EABI: aarch64, DATE: Mon Jun 16 16:07:13 UTC 2025",
        "etc/os-release": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"',
        "sys/class/hwmon/hwmon0/name": "pwmfan",
        "sys/class/hwmon/hwmon1/name": "ina3221",
        "sys/class/hwmon/hwmon1/in7_label": "sum of shunt voltages",
        "sys/class/hwmon/hwmon1/in7_input": 680,
        "sys/class/hwmon/hwmon1/curr4_input": 1856,  # of that sum
        "sys/class/hwmon/hwmon3/name": "soctherm_oc",
        "sys/class/hwmon/hwmon3/oc1_event_cnt": 0,
        "sys/class/hwmon/hwmon3/oc2_event_cnt": 0,
        "sys/class/hwmon/hwmon3/oc3_event_cnt": 37,
        "sys/class/devfreq/17000000.gpu/cur_freq": 306000000,
        "sys/class/devfreq/17000000.gpu/max_freq": 1020000000,
        "sys/class/devfreq/17000000.gpu/device/load": 330,
        "sys/class/devfreq/15340000.vic/cur_freq": 115200000,
        "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": 729600,
        "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": 1510400,
        "sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": 1510400,
        "sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq": 1510400,
        "sys/class/thermal/thermal_zone2/type": "cv0-thermal",  # its temp does not answer
        "sys/class/thermal/cooling_device0/type": "pwm-fan",
        "sys/class/thermal/cooling_device0/cur_state": 1,
        "sys/class/thermal/cooling_device3/type": "cpu-throttle-alert",
        "sys/class/thermal/cooling_device3/cur_state": 0,
    }
    rails = {"VDD_IN": (4968, 1520), "VDD_CPU_GPU_CV": (4960, 240), "VDD_SOC": (4960, 496)}
    return write(root, files | sensors("hwmon1", rails, zones, 3))


def sensors(
    chip: str, rails: dict[str, tuple[int, int]], zones: dict[str, int], first_zone: int
) -> dict[str, object]:
    """Files of power rails (mV, mA) and of thermal zones (thousandths of a degree)."""
    files: dict[str, object] = {}
    for number, (name, (millivolts, milliamperes)) in enumerate(rails.items(), 1):
        files[f"sys/class/hwmon/{chip}/in{number}_label"] = name
        files[f"sys/class/hwmon/{chip}/in{number}_input"] = millivolts
        files[f"sys/class/hwmon/{chip}/curr{number}_input"] = milliamperes
    for number, (name, millidegrees) in enumerate(zones.items(), first_zone):
        files[f"sys/class/thermal/thermal_zone{number}/type"] = f"{name}-thermal"
        files[f"sys/class/thermal/thermal_zone{number}/temp"] = millidegrees
    return files


def thor(root: Path) -> Path:
    """Jetson AGX Thor, JetPack 7.1 (L4T R38.4), its GPU hot and held back."""
    zones = {"cpu": 96100, "gpu": 108200, "soc012": 97000, "soc345": 99000, "tj": 109000}
    files: dict[str, object] = {
        "proc/meminfo": meminfo(128792000, 90000000, 0, 0),
        "proc/stat": "cpu  1000 0 500 8000 500 0 0 0 0 0",
        "proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\0",
        "etc/nv_tegra_release": "# R38 (release), REVISION: 4.0, GCID: 43443517, BOARD: generic, "
        "EABI: aarch64, DATE: Wed Dec 31 00:15:19 UTC 2025\n# KERNEL_VARIANT: oot",
        "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"',
        "sys/class/hwmon/hwmon4/name": "ina238",
        "sys/class/hwmon/hwmon4/curr1_input": 4100,
        "sys/class/hwmon/hwmon4/power1_input": 87426000,
        "sys/class/hwmon/hwmon5/name": "ina3221",
        "sys/class/hwmon/hwmon2/name": "soctherm_oc",
        "sys/class/hwmon/hwmon2/oc3_event_cnt": 12,
        "sys/class/devfreq/gpu-gpc-0/cur_freq": 1100000000,
        "sys/class/devfreq/gpu-gpc-0/max_freq": 1575000000,
        "sys/class/devfreq/gpu-nvd-0/cur_freq": 1000000000,
        "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": 2601000,
        "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": 2601000,
        "sys/class/thermal/cooling_device10/type": "gpu-throttle-alert",
        "sys/class/thermal/cooling_device10/cur_state": 1,
        "sys/class/thermal/cooling_device2/type": "devfreq-gpu-gpc-0",
        "sys/class/thermal/cooling_device2/cur_state": 18,
    }
    rails = {"VDD_GPU": (19864, 1889), "VDD_CPU_SOC_MSS": (19856, 955), "VIN_SYS_5V0": (4990, 3674)}
    return write(root, files | sensors("hwmon5", rails, zones, 0))


def pc(root: Path) -> Path:
    """A PC without a GPU, RAPL readable."""
    rapl = "sys/class/powercap/intel-rapl:0"
    return write(
        root,
        {
            "proc/meminfo": meminfo(16000000, 8000000, 2000000, 1500000),
            "proc/stat": "cpu  1000 0 500 8000 500 0 0 0 0 0",
            "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"',
            f"{rapl}/name": "package-0",
            f"{rapl}/energy_uj": 262143000000,
            f"{rapl}/max_energy_range_uj": 262143328850,
            "sys/class/powercap/intel-rapl:0:0/name": "core",  # a part of the package
            "sys/class/powercap/intel-rapl:0:0/energy_uj": 1000,
            "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": 262143328850,
            "sys/class/hwmon/hwmon1/name": "coretemp",
            "sys/class/hwmon/hwmon1/temp1_label": "Package id 0",
            "sys/class/hwmon/hwmon1/temp1_input": 61000,
            "sys/class/hwmon/hwmon0/name": "nvme",
            "sys/class/hwmon/hwmon0/temp1_input": 75000,
            "sys/class/thermal/thermal_zone0/type": "acpitz",
            "sys/class/thermal/thermal_zone0/temp": 27800,
            "sys/class/thermal/cooling_device0/type": "Processor",
            "sys/class/thermal/cooling_device0/cur_state": 0,
        },
    )
