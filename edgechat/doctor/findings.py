"""The rows of the report that people read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgechat.device import Device
from edgechat.doctor.libraries import Libraries, Library
from edgechat.doctor.machine import Machine
from edgechat.doctor.needs import Needs
from edgechat.doctor.verdict import Engine, Verdict, free_room, provider_gap
from edgechat.memory_plan import MemoryPlan

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Finding:
    """``state``: good, bad (there, but it does not work) or neither; ``remedy`` may be empty."""

    state: Literal["good", "bad", "neither"]
    name: str
    text: str
    remedy: str = ""


def machine_findings(m: Machine) -> list[Finding]:
    sensors = m.sensors
    python = f"Python {m.python}{' in a virtual environment' if m.in_virtual_environment else ''}"
    place = ", in a container" if m.in_container else ""
    rows = [Finding("neither", "system", f"{m.system}, {m.architecture}{place}, {python}")]
    if m.board or m.l4t:
        releases = [f"JetPack {m.jetpack}" if m.jetpack else "", f"L4T {m.l4t}" if m.l4t else ""]
        parts = [m.board or "a Jetson", *filter(None, releases)]
        rows.append(Finding("neither", "board", ", ".join(parts)))
    cores = f"{m.cores} core{'' if m.cores == 1 else 's'}"
    processor = f"{m.processor}, {cores}" if m.processor else cores
    rows.append(
        Finding("neither", "processor", processor + _clock(sensors.cpu_mhz, m.cpu_mhz_most))
    )
    rows.append(Finding("neither", "memory", _memory(m)))
    free = (
        "free space unknown" if m.cache_folder_free is None else f"{_gib(m.cache_folder_free)} free"
    )
    rows.append(Finding("neither", "disk", f"{free} in {m.cache_folder}"))
    if m.is_jetson:
        rows.append(_power_mode(m))
    if sensors.gpu_mhz or m.gpu_mhz_most:
        clock = _clock(sensors.gpu_mhz, m.gpu_mhz_most).removeprefix(", ")
        rows.append(Finding("neither", "GPU clock", clock))
    rows += _thermal(m)
    if m.huge_pages is not None:
        rows.append(_huge_pages(m.huge_pages))
    return rows


def software_findings(m: Machine, libraries: Libraries) -> list[Finding]:
    rows = [_library("ONNX Runtime", libraries.onnxruntime, wanted=not m.is_jetson)]
    for name, error in libraries.providers.items():
        if error is None:
            rows.append(Finding("good", name, "computes"))
        else:
            gap = provider_gap(name, error, m, libraries)
            rows.append(Finding("bad", name, gap.problem.removeprefix(f"{name} "), gap.remedy))
    rows.append(_library("NVIDIA driver", libraries.driver, m.is_jetson, "runs CUDA "))
    gpu = libraries.gpu
    if gpu is not None:
        kind = "shared with the system" if gpu.integrated else f"{_gib(gpu.free_memory)} free"
        text = (
            f"{gpu.name}, compute capability {gpu.compute_capability}, {_gib(gpu.memory)}, {kind}"
        )
        rows.append(Finding("good", "GPU", text))
    elif libraries.gpu_error and libraries.driver.version:
        rows.append(Finding("bad", "GPU", libraries.gpu_error.removesuffix(".")))
    bindings = _library("cuda-bindings", libraries.cuda_bindings, m.is_jetson)
    rows += [
        bindings,
        _library("cuDNN", libraries.cudnn, False),
        _library("TensorRT", libraries.tensorrt, m.is_jetson),
    ]
    return rows


def target_findings(targets: dict[str, Verdict], m: Machine, libraries: Libraries) -> list[Finding]:
    """Which bundles would run, by the ``--target`` they are exported for."""
    rows = []
    for target, verdict in targets.items():
        if verdict.outcome != "cannot":
            rows.append(Finding("good", f"--target {target}", "can run here"))
            continue
        expected = m.is_jetson or target == "cpu" or libraries.driver.version is not None
        gap = verdict.gaps[0]
        state: Literal["bad", "neither"] = "bad" if expected else "neither"
        rows.append(
            Finding(state, f"--target {target}", gap.problem, gap.remedy if expected else "")
        )
    return rows


def needs_findings(
    bundle: Path,
    needs: Needs | None,
    verdict: Verdict,
    engine: Engine | None,
    m: Machine,
    libraries: Libraries,
) -> list[Finding]:
    rows = []
    if needs is not None:
        backend = "ONNX Runtime" if needs.tensorrt is None else f"TensorRT {needs.oldest} or later"
        made = f"weights {needs.precision}, KV cache {needs.kv_dtype}; {needs.dialect}, {backend}"
        rows.append(Finding("neither", bundle.name, made))
        if needs.plan is not None:
            rows.append(_planned_memory(needs.plan, free_room(needs, m, libraries)))
        if engine is not None and engine.why_build is None:
            rows.append(Finding("good", "engine", "is there for this TensorRT and GPU"))
        elif needs.engine_disk is not None:
            why = "" if engine is None else f"{engine.why_build}; "
            disk = f"{why}it may take {needs.engine_disk // MIB:,} MiB of disk"
            rows.append(Finding("neither", "engine", disk))
    rows += [Finding("bad", "problem", gap.problem, gap.remedy) for gap in verdict.gaps]
    told = {
        "run": "would run",
        "build": "would build its engine first (edgechat build does it now), then run",
        "cannot": "cannot run here",
    }
    state: Literal["good", "bad"] = "bad" if verdict.outcome == "cannot" else "good"
    return [*rows, Finding(state, "verdict", told[verdict.outcome])]


def _planned_memory(plan: MemoryPlan, room: Device | None) -> Finding:
    tokens = f"with {plan.slots:,} tokens in the cache"
    if room is None:
        return Finding("neither", "memory", f"{plan.talking_bytes // MIB:,} MiB {tokens}")
    needed = room.available_bytes - plan.left(room)
    where = "memory" if room.shared_memory else "the GPU's memory"
    free = f"{room.available_bytes // MIB:,} MiB of {where} are free"
    state: Literal["good", "bad"] = "good" if plan.left(room) >= 0 else "bad"
    return Finding(state, "memory", f"{needed // MIB:,} MiB {tokens}, {free}")


def _library(name: str, found: Library, wanted: bool, before: str = "") -> Finding:
    if found.version is not None:
        return Finding("good", name, before + found.version)
    problem, _, remedy = (found.error or "not found").removesuffix(".").partition("; ")
    return Finding("bad" if wanted else "neither", name, problem, remedy if wanted else "")


def _memory(m: Machine) -> str:
    s = m.sensors
    if s.memory_total is None or s.memory_used is None:
        return "unknown"
    swap = "no swap"
    if s.swap_total:
        swap = f"{_gib(s.swap_total)} of swap, {_gib(s.swap_used or 0)} used"
    free = s.memory_total - s.memory_used
    return f"{_gib(s.memory_total)}, {_gib(free)} free; {swap}"


def _power_mode(m: Machine) -> Finding:
    if m.power_mode is None:
        return Finding("neither", "power mode", "nvpmodel does not tell")
    if m.power_mode.upper().startswith("MAXN"):
        return Finding("good", "power mode", m.power_mode)
    remedy = "sudo nvpmodel -p --verbose lists the modes, -m NUMBER sets one; MAXN is fastest"
    return Finding("neither", "power mode", m.power_mode, remedy)


def _thermal(m: Machine) -> list[Finding]:
    s = m.sensors
    heat = "not measured" if s.celsius is None else f"{s.celsius:.0f} °C"
    rows = [Finding("neither", "temperature", heat)]
    events = [f"{n} {count:,} times" for n, count in s.throttle_events.items() if count]
    since = f"; since the start: {', '.join(events)}" if events else ""
    if s.throttled:
        text = f"held back now by {', '.join(s.throttled)}{since}"
        rows.append(
            Finding("bad", "throttling", text, "cool it better, or choose a lower power mode")
        )
    elif events:
        remedy = "a stronger power supply or a lower power mode stops that"
        rows.append(Finding("neither", "throttling", f"none now{since}", remedy))
    elif s.throttle_events or m.is_jetson:
        rows.append(Finding("good", "throttling", "none"))
    return rows


def _huge_pages(setting: str) -> Finding:
    if setting != "never":
        return Finding("good", "huge pages", setting)
    remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    return Finding("neither", "huge pages", "never: decoding on the CPU is a little slower", remedy)


def _clock(now: float | None, most: float | None) -> str:
    if now is None:
        return "" if most is None else f", off, up to {most:,.0f} MHz"
    return f", {now:,.0f} MHz" + ("" if most is None else f" of {most:,.0f}")


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
