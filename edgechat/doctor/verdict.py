"""What the machine lacks for what is needed, and what would happen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgechat.device import Device
from edgechat.doctor.gap import Gap, gap_of
from edgechat.doctor.libraries import Libraries
from edgechat.doctor.machine import Machine
from edgechat.doctor.needs import Needs

GIB, MIB = 1 << 30, 1 << 20
Ways = Callable[[Device], list[str]]
"""What would make the bundle fit a device, as ``memory_plan.remedies`` finds it."""
EXTRA = "pip install 'edgechat[{}]'"
JETSON_WHEELS = "NVIDIA's Jetson AI Lab package index"
NO_KERNEL = "no kernel image"


@dataclass(frozen=True)
class Engine:
    """The place for a bundle's engine: why one has to be built (None: it is there), bytes free,
    and whether the folder can be written."""

    why_build: str | None = None
    disk_free: int | None = None
    writable: bool = True


@dataclass(frozen=True)
class Verdict:
    """``build``: it would run after a first build. ``gaps`` are there when it cannot."""

    outcome: Literal["run", "build", "cannot"]
    gaps: tuple[Gap, ...] = ()
    why_build: str | None = None


def judge(
    needs: Needs,
    machine: Machine,
    libraries: Libraries,
    engine: Engine | None = None,
    ways: Ways = lambda room: [],
) -> Verdict:
    gaps = [*needs.gaps, *software_gaps(needs, machine, libraries)]
    room = free_room(needs, machine, libraries)
    if not gaps:
        gaps += memory_gaps(needs, room, ways)
    if engine is not None and engine.why_build is not None and not gaps:
        gaps += [*building_gaps(needs, room), *disk_gaps(needs, engine)]
        if not gaps:
            return Verdict("build", why_build=engine.why_build)
    return Verdict("cannot" if gaps else "run", tuple(gaps))


def software_gaps(needs: Needs, machine: Machine, libraries: Libraries) -> list[Gap]:
    gaps = []
    if needs.provider is not None:
        gaps += onnxruntime_gaps(needs, machine, libraries)
    if needs.on_gpu:
        gaps = [*driver_gaps(machine, libraries), *gaps, *cuda_gaps(machine, libraries)]
    if needs.tensorrt is not None:
        gaps += tensorrt_gaps(needs, machine, libraries)
    return gaps


def onnxruntime_gaps(needs: Needs, machine: Machine, libraries: Libraries) -> list[Gap]:
    """Gaps of the package, its version and the provider."""
    assert needs.provider is not None
    package = "onnxruntime-gpu" if needs.on_gpu else "onnxruntime"
    extra = "cuda" if needs.on_gpu else "cpu"
    version = libraries.onnxruntime.version
    if version is None:
        problem = f"ONNX Runtime cannot be loaded ({libraries.onnxruntime.error})"
        return [Gap(problem, f"pip install 'edgechat[{extra}]'")]
    if needs.onnxruntime is not None and _release(version) < needs.onnxruntime:
        needed = ".".join(map(str, needs.onnxruntime))
        problem = f"an int8 KV cache needs ONNX Runtime {needed}, here is {version}"
        return [Gap(problem, f"pip install -U {package}")]
    if needs.provider not in libraries.providers:
        problem = f"ONNX Runtime {version} has no {needs.provider}"
        if {"onnxruntime", "onnxruntime-gpu"} <= set(libraries.onnxruntime_packages):
            remedy = (
                "onnxruntime overwrote onnxruntime-gpu: pip uninstall onnxruntime onnxruntime-gpu, "
                "then pip install onnxruntime-gpu"
            )
        elif machine.is_jetson:
            remedy = f"install onnxruntime-gpu for your JetPack from {JETSON_WHEELS}"
        else:
            remedy = f"pip uninstall onnxruntime, then pip install 'edgechat[{extra}]'"
        return [Gap(problem, remedy)]
    error = libraries.providers[needs.provider]
    return [] if error is None else [provider_gap(needs.provider, error, machine, libraries)]


def provider_gap(name: str, error: str, machine: Machine, libraries: Libraries) -> Gap:
    """A provider that is there but does not compute."""
    gpu = libraries.gpu
    if NO_KERNEL in error:
        code = "this GPU" if gpu is None else f"sm_{gpu.compute_capability.replace('.', '')}"
        problem = f"this onnxruntime-gpu carries no code for {code}"
        if machine.is_jetson:
            return Gap(problem, f"install the one built for your JetPack from {JETSON_WHEELS}")
        return Gap(problem, "pip install -U onnxruntime-gpu")
    missing = re.search(r"(lib\w+\.so[.\d]*|\w+\.dll)\W*(cannot open|which is missing)", error)
    problem = f"{name} does not work ({f'{missing[1]} is missing' if missing else error})"
    if libraries.driver.version is None:
        return Gap(problem, "it needs an NVIDIA GPU and its driver")
    if missing:
        if machine.is_jetson:
            return Gap(problem, f"sudo apt install nvidia-jetpack, which has {missing[1]}")
        remedy = (
            f"pip install 'onnxruntime-gpu[cuda,cudnn]', or the CUDA and cuDNN with {missing[1]}"
        )
        return Gap(problem, remedy)
    return Gap(problem, "reinstall it, or export with another --target")


def driver_gaps(machine: Machine, libraries: Libraries) -> list[Gap]:
    if libraries.driver.version is not None:
        return []
    problem = libraries.driver.error or "there is no NVIDIA driver"
    if machine.in_container and machine.is_jetson:
        return [Gap(problem, "start the container with --runtime nvidia")]
    if machine.is_jetson:
        return [Gap(problem, "it comes with JetPack: sudo apt install nvidia-jetpack, or flash")]
    remedy = (
        "install one if there is an NVIDIA GPU; to run the model on this CPU, export it with "
        "--target cpu"
    )
    return [Gap(problem, remedy)]


def cuda_gaps(machine: Machine, libraries: Libraries) -> list[Gap]:
    """Gaps of cuda-bindings, which may not be newer than the driver's CUDA, and of the GPU."""
    driver, bindings = libraries.driver.version, libraries.cuda_bindings.version
    if bindings is None:
        problem = (libraries.cuda_bindings.error or "").partition("; ")[0]
        return [Gap(problem, EXTRA.format(_extra(machine, driver)))]
    if driver is not None and int(bindings.split(".")[0]) > int(driver.split(".")[0]):
        problem = f"cuda-bindings {bindings} is newer than the driver, which runs CUDA {driver}"
        return [Gap(problem, EXTRA.format(_extra(machine, driver)))]
    if libraries.gpu is None and driver is not None:
        return [gap_of(libraries.gpu_error or "CUDA finds no GPU; check nvidia-smi.")]
    return []


def tensorrt_gaps(needs: Needs, machine: Machine, libraries: Libraries) -> list[Gap]:
    assert needs.tensorrt is not None
    version, oldest = libraries.tensorrt.version, needs.oldest
    if version is not None:
        if _release(version) >= needs.tensorrt:
            return []
        problem = f"the bundle needs TensorRT {oldest} or later, here is {version}"
        return [Gap(problem, "export with --target jetson-jp6, or update JetPack")]
    if machine.jetpack_major is not None and machine.jetpack_major < 6:
        problem = f"JetPack {machine.jetpack} has a TensorRT older than {oldest}"
        return [Gap(problem, "flash JetPack 6 or later")]
    if "python3-libnvinfer" in machine.packages and not machine.sees_system_packages:
        problem = "this virtual environment does not see the system's Python package tensorrt"
        remedy = "make it anew with python3 -m venv --system-site-packages, and the system's Python"
        return [Gap(problem, remedy)]
    if machine.is_jetson and "python3-libnvinfer" not in machine.packages:
        problem = "TensorRT for Python is not installed"
        return [Gap(problem, "sudo apt install tensorrt python3-libnvinfer")]
    return [gap_of(libraries.tensorrt.error or "TensorRT cannot be loaded.")]


def memory_gaps(needs: Needs, room: Device | None, ways: Ways) -> list[Gap]:
    """While it talks."""
    if needs.plan is None or room is None or needs.plan.left(room) >= 0:
        return []
    free = room.available_bytes
    where = "memory" if room.shared_memory else "GPU memory"
    needed = free - needs.plan.left(room)
    problem = f"{needed // MIB:,} MiB of {where} are needed but {free // MIB:,} MiB are free"
    return [Gap(problem, ", or ".join([*ways(room), "end other programs"]))]


def free_room(needs: Needs, machine: Machine, libraries: Libraries) -> Device | None:
    """The memory that is free now where the bundle would be, as a device of that size; None when
    the machine does not say."""
    gpu, sensors = libraries.gpu, machine.sensors
    if needs.on_gpu and gpu is not None and not gpu.integrated:
        return Device(max(gpu.free_memory, 1) / GIB, shared_memory=False)
    total, used = sensors.memory_total, sensors.memory_used
    if total is None or used is None:
        return None
    swap = (sensors.swap_total or 0) - (sensors.swap_used or 0)
    return Device(max(total - used, 1) / GIB, swap_gib=max(swap, 0) / GIB)


def building_gaps(needs: Needs, room: Device | None) -> list[Gap]:
    """While its engine is built."""
    if needs.plan is None or room is None or needs.plan.left_building(room) >= 0:
        return []
    needed, missing = needs.plan.building_bytes, -needs.plan.left_building(room)
    free = room.available_bytes + room.swap_bytes
    problem = (
        f"building the engine takes about {needed // MIB:,} MiB of memory but {free // MIB:,} MiB "
        "are free, swap included"
    )
    return [Gap(problem, f"add {-(-missing // GIB)} GiB of swap, or end other programs")]


def disk_gaps(needs: Needs, engine: Engine) -> list[Gap]:
    if not engine.writable:
        problem = "the engine is kept in the bundle, whose folder cannot be written"
        return [Gap(problem, "copy the bundle to where you may write")]
    if engine.disk_free is None or (needs.engine_disk or 0) <= engine.disk_free:
        return []
    problem = (
        f"the engine may take {(needs.engine_disk or 0) // MIB:,} MiB of disk but "
        f"{engine.disk_free // MIB:,} MiB are free"
    )
    return [Gap(problem, "free some space")]


def _extra(machine: Machine, driver: str | None) -> str:
    """Of edgechat's, with the cuda-bindings for this JetPack or driver."""
    cuda_12 = machine.jetpack_major == 6 or (driver or "").startswith("12.")
    return "jetpack6" if cuda_12 else "jetpack7"


def _release(version: str) -> tuple[int, int]:
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
