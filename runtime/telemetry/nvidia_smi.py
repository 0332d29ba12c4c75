"""nvidia-smi: a PC's GPU, and on Thor its load, which sysfs does not tell there."""

from __future__ import annotations

from edgechat.runtime.telemetry.reading import Reading

FIELDS = ("utilization.gpu", "temperature.gpu", "power.draw", "clocks.sm")
COMMAND = (
    "nvidia-smi",
    f"--query-gpu={','.join(FIELDS)}",
    "--format=csv,noheader,nounits",
    "--id=0",
    "--loop-ms=1000",
)
RAIL = "GPU board"


def parse_nvidia_smi(line: str) -> Reading:
    """What one line says; fields that a GPU lacks read ``[N/A]``."""
    values = [_number(word) for word in line.split(",")]
    if len(values) != len(FIELDS):
        return Reading()
    load, celsius, watts, mhz = values
    return Reading(
        rails={} if watts is None else {RAIL: watts},
        temperatures={} if celsius is None else {"gpu": celsius},
        gpu_percent=load,
        gpu_mhz=mhz,
    )


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
