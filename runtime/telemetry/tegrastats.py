"""tegrastats: the line a Jetson prints a second.

The fields differ by board and release, are partly root's only, and come and go while engines
sleep; each is looked for by itself. Reference: "tegrastats Utility" in NVIDIA's Jetson Linux
Developer Guide, https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/
"""

from __future__ import annotations

import re

from edgechat.runtime.telemetry.reading import Reading, real_temperatures

MIB = 1 << 20
COMMAND = ("tegrastats", "--interval", "1000")  # ms

MEMORY = re.compile(r"\bRAM (\d+)/(\d+)MB")
SWAP = re.compile(r"\bSWAP (\d+)/(\d+)MB")
CORES = re.compile(r"\bCPU \[([^\]]*)\](?:@(\d+))?")  # [3%@729,off] or [3%,off]@729
CORE = re.compile(r"(\d+)%(?:@(\d+))?")
# 5%, 5%@114, 5%@[114,0] (a clock for each cluster) and, on Thor, @[314,314,314] without a load
GPU = re.compile(r"\bGR3D_FREQ (?:(\d+)%)?(?:@\[?([\d,]+))?")
TEMPERATURE = re.compile(r"\b([A-Za-z]\w*)@(-?\d+(?:\.\d+)?)C\b")
# now/mean, since R34 in mW, since R39 now/mean/most; Thor's can be negative
RAIL = re.compile(r"\b([A-Z][A-Z0-9_]*) (-?\d+)(?:mW(?:/-?\d+mW)*|/\d+)(?=\s|$)")


def parse_tegrastats(line: str) -> Reading:
    """What one line of tegrastats says; anything else gives an empty reading."""
    memory, swap, cores, gpu = (p.search(line) for p in (MEMORY, SWAP, CORES, GPU))
    loads: list[float] = []
    clocks: list[float] = []
    if cores:
        loads = [float(load) for load, _ in CORE.findall(cores[1])]
        clocks = [float(mhz) for _, mhz in CORE.findall(cores[1]) if mhz]
        clocks = clocks or [float(cores[2])] if cores[2] else clocks
    gpu_clocks = [float(mhz) for mhz in gpu[2].split(",") if mhz] if gpu and gpu[2] else []
    return Reading(
        rails={name: int(mw) / 1000 for name, mw in RAIL.findall(line)},
        temperatures=real_temperatures((n, float(c)) for n, c in TEMPERATURE.findall(line)),
        cpu_percent=sum(loads) / len(loads) if loads else None,
        gpu_percent=float(gpu[1]) if gpu and gpu[1] else None,
        cpu_mhz=max(clocks, default=None),
        gpu_mhz=max(gpu_clocks, default=0) or None,  # 0: the GPU is off
        memory_used=int(memory[1]) * MIB if memory else None,
        memory_total=int(memory[2]) * MIB if memory else None,
        swap_used=int(swap[1]) * MIB if swap else None,
        swap_total=int(swap[2]) * MIB if swap else None,
    )
