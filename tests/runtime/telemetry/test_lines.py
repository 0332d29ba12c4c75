"""Lines of tegrastats as boards of several L4T releases print them, and of nvidia-smi."""

from __future__ import annotations

import pytest

from edgechat.runtime.telemetry.nvidia_smi import parse_nvidia_smi
from edgechat.runtime.telemetry.reading import Reading, counted_rails
from edgechat.runtime.telemetry.tegrastats import MIB, parse_tegrastats

NANO_R32 = (
    "RAM 1655/3956MB (lfb 311x4MB) SWAP 0/1978MB (cached 0MB) IRAM 0/252kB(lfb 252kB) "
    "CPU [12%@102,10%@102,11%@102,12%@102] EMC_FREQ 3%@1600 GR3D_FREQ 0%@76 APE 25 PLL@36.5C "
    "CPU@39C iwlwifi@44C PMIC@50C GPU@37C AO@47.5C thermal@38C POM_5V_IN 2132/2132 "
    "POM_5V_GPU 78/78 POM_5V_CPU 275/275"
)
XAVIER_NX_R32 = (
    "RAM 2690/6854MB (lfb 6x1MB) SWAP 479/3427MB (cached 3MB) "
    "CPU [3%@1904,7%@1906,1%@1905,0%@1907,off,off] EMC_FREQ 0%@1600 GR3D_FREQ 0%@[510] "
    "VIC_FREQ 601 APE 150 AUX@39C CPU@39.5C AO@37.5C GPU@37.5C PMIC@50C VDD_IN 5079mW/5079mW "
    "VDD_CPU_GPU_CV 696mW/696mW VDD_SOC 1104mW/1104mW"
)
AGX_ORIN_R35 = (
    "04-24-2023 00:01:24 RAM 1282/62795MB (lfb 15152x4MB) SWAP 0/31398MB (cached 0MB) "
    "CPU [0%@729,0%@729,off,off] EMC_FREQ 0%@2133 GR3D_FREQ 0%@0 GR3D2_FREQ 0%@0 VIC_FREQ 729 "
    "APE 174 CV0@-256C CPU@42.593C Tboard@32C SOC2@39.343C Tdiode@33.25C SOC0@39.375C CV1@-256C "
    "GPU@-256C tj@42.593C SOC1@40.468C CV2@-256C VDD_GPU_SOC 2399mW/2399mW VDD_CPU_CV 400mW/400mW "
    "VIN_SYS_5V0 4032mW/4032mW NC 0mW/0mW VDDQ_VDD2_1V8AO 301mW/301mW NC 0mW/0mW"
)
ORIN_NANO_R36 = (
    "09-21-2025 15:38:17 RAM 3645/7620MB (lfb 63x4MB) SWAP 236/3810MB (cached 0MB) "
    "CPU [1%@729,1%@729,4%@729,1%@729,0%@729,0%@729] EMC_FREQ 0%@204 GR3D_FREQ 37%@[305] "
    "NVDEC off NVJPG off NVJPG1 off VIC off OFA off APE 200 cpu@44.125C soc2@43.375C soc0@42.125C "
    "gpu@44.531C tj@44.531C soc1@43.156C VDD_IN 2957mW/2957mW VDD_CPU_GPU_CV 486mW/486mW "
    "VDD_SOC 1012mW/1012mW"
)
AGX_ORIN_R36 = (
    "05-09-2026 18:42:07 RAM 18202/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) "
    "CPU [16%@1949,6%@1761,4%@1222,4%@2201] EMC_FREQ 3%@2133 GR3D_FREQ 0%@[0,0] NVENC 78%@166 "
    "NVDEC off NVJPG off NVJPG1 off VIC 32%@115 OFA off NVDLA0 off NVDLA1 off PVA0_FREQ off "
    "APE 174 cpu@52.343C soc2@48.343C soc0@49.062C tj@52.343C soc1@49.531C "
    "VDD_GPU_SOC 2412mW/2412mW VDD_CPU_CV 1607mW/1607mW VIN_SYS_5V0 4607mW/4657mW"
)
THOR_R38_OFF = (
    "05-17-2026 10:00:33 RAM 4280/125773MB (lfb 29x4MB) SWAP 0/2048MB (cached 0MB) "
    "CPU [0%@972,0%@972,1%@972,0%@2601] EMC_FREQ 0%@665 GR3D_FREQ @[0,0,0] NVENC0_FREQ @0 "
    "NVENC1_FREQ @0 NVDEC0_FREQ @0 NVDEC1_FREQ @0 NVJPG0_FREQ @0 VIC off OFA_FREQ @0 "
    "PVA0_FREQ off APE 300 cpu@35.25C tj@36.031C soc012@36.062C soc345@34.5C VDD_GPU 0mW/0mW "
    "VDD_CPU_SOC_MSS 4923mW/4544mW VIN_SYS_5V0 4327mW/4227mW"
)
THOR_R38 = (
    "01-20-2026 22:46:22 RAM 17842/125772MB (lfb 79x4MB) CPU [0%@972,0%@1566,1%@972] "
    "cpu@30.468C tj@31.218C soc012@30.218C soc345@31.218C VDD_GPU -392mW/-392mW "
    "VDD_CPU_SOC_MSS 5535mW/5535mW VIN_SYS_5V0 5040mW/5040mW VIN 16802mW/16802mW"
)
THOR_R39 = (
    "08-08-2026 21:00:39 RAM 8353/125749MB (lfb 31x4MB) CPU [90%@2601,75%@2601,off,7%@2601] "
    "EMC_FREQ 34%@4266 GR3D_FREQ 87%@[1574,1573,1574] NVENC0_FREQ @1691 VIC off "
    "cpu@58.25C/61.75C tj@66.625C/66.625C gpu@56.937C/66.625C soc012@55.375C/58.781C "
    "VDD_GPU 37939mW/8660mW/37939mW VDD_CPU_SOC_MSS 30059mW/12281mW/30059mW "
    "VIN_SYS_5V0 15486mW/7424mW/15486mW VIN 124486mW/36487mW/124486mW"
)


@pytest.mark.parametrize(
    ("line", "watts", "celsius", "cpu", "gpu", "gpu_mhz", "used"),
    [
        (NANO_R32, 2.132, 39, 11.25, 0, 76, 1655),
        (XAVIER_NX_R32, 5.079, 39.5, 2.75, 0, 510, 2690),
        (AGX_ORIN_R35, 2.399 + 0.4 + 4.032, 42.593, 0, 0, None, 1282),
        (ORIN_NANO_R36, 2.957, 44.531, 7 / 6, 37, 305, 3645),
        (AGX_ORIN_R36, 2.412 + 1.607 + 4.607, 52.343, 7.5, 0, None, 18202),
        (THOR_R38_OFF, 4.923 + 4.327, 36.031, 0.25, None, None, 4280),
        (THOR_R38, 16.802, 31.218, 1 / 3, None, None, 17842),
        (THOR_R39, 124.486, 66.625, 172 / 3, 87, 1574, 8353),
    ],
)
def test_tegrastats(
    line: str,
    watts: float,
    celsius: float,
    cpu: float,
    gpu: float | None,
    gpu_mhz: float | None,
    used: int,
) -> None:
    found = parse_tegrastats(line)
    assert found.watts == pytest.approx(watts)
    assert found.celsius == celsius
    assert found.cpu_percent == pytest.approx(cpu)
    assert (found.gpu_percent, found.gpu_mhz) == (gpu, gpu_mhz)
    assert found.memory_used == used * MIB
    assert "pmic" not in found.temperatures
    assert all(value > 0 for value in found.temperatures.values())


def test_rails_of_an_agx_xavier_have_plain_names() -> None:
    rails = parse_tegrastats(
        "CPU [4%@1190] GPU 0/0 CPU 216/216 SOC 1298/1298 SYS5V 1889/1889"
    ).rails
    assert rails == {"GPU": 0, "CPU": 0.216, "SOC": 1.298, "SYS5V": 1.889}


@pytest.mark.parametrize("line", ["", "tegrastats: command not found", "RAM x/yMB CPU [a,b] G@C"])
def test_what_is_missing_is_not_zero(line: str) -> None:
    assert parse_tegrastats(line) == Reading()


def test_loads_with_one_clock_behind_them() -> None:
    found = parse_tegrastats("CPU [0%,5%,off]@2601 EMC_FREQ @4266 GR3D_FREQ 0% cpu@49C")
    assert (found.cpu_percent, found.cpu_mhz) == (2.5, 2601)
    assert (found.gpu_percent, found.gpu_mhz) == (0, None)


def test_every_watt_is_counted_once() -> None:
    assert counted_rails(["VDD_SOC", "VDD_IN", "VDD_CPU_GPU_CV"]) == ["VDD_IN"]
    assert counted_rails(["VDD_GPU", "VIN_SYS_5V0", "VIN"]) == ["VIN"]
    assert counted_rails(["NC", "VDDQ_VDD2_1V8AO", "VIN_SYS_5V0"]) == ["VIN_SYS_5V0"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("87, 64, 312.45, 1395", (87, 64, 312.45, 1395)),
        ("12, [N/A], [N/A], [N/A]", (12, None, None, None)),  # Thor
        ("NVIDIA-SMI has failed because it couldn't communicate", (None, None, None, None)),
    ],
)
def test_nvidia_smi(line: str, expected: tuple[float | None, ...]) -> None:
    found = parse_nvidia_smi(line)
    assert (found.gpu_percent, found.celsius, found.watts, found.gpu_mhz) == expected
