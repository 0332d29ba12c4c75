"""What is missing on made machines with made libraries, and the remedy for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import machines
import pytest

from edgechat.doctor.ask import Answer
from edgechat.doctor.libraries import Gpu, Libraries, Library
from edgechat.doctor.machine import Machine, look_at_machine
from edgechat.doctor.needs import Needs
from edgechat.doctor.verdict import Engine, judge
from edgechat.memory_plan import Item, MemoryPlan

GIB = 1 << 30
ORIN_GPU = Gpu("Orin", "8.7", 8 * GIB, 4 * GIB, integrated=True)
ON_ORIN = Libraries(
    onnxruntime=Library("1.23.0"),
    onnxruntime_packages=("onnxruntime-gpu",),
    providers={"CUDAExecutionProvider": None, "CPUExecutionProvider": None},
    driver=Library("12.6"),
    cuda_bindings=Library("12.9.1"),
    cuda_runtime="12.9",
    gpu=ORIN_GPU,
    gpu_error=None,
    cudnn=Library("9.3.0"),
    tensorrt=Library("10.3.0"),
)


def _plan(dialect: str, gib: int, building_gib: int = 0) -> MemoryPlan:
    """A plan of that many GiB, half a GiB of them never on a card."""
    talking = (
        Item("weights", gib * GIB - GIB // 2, ""),
        Item("program", GIB // 2, "", on_host=True),
    )
    building = (Item("builder", building_gib * GIB, ""),)
    return MemoryPlan(dialect, 2048, 2048, 1024, talking, building, 0, 0)


JP6_PLAN = _plan("tensorrt_10_3", 1, building_gib=3)
JP6 = Needs("tensorrt_10_3", tensorrt=(10, 3), plan=JP6_PLAN, engine_disk=2 * GIB)
JP7 = replace(JP6, dialect="tensorrt_10_15", tensorrt=(10, 15))
CUDA = Needs("ort_cuda", provider="CUDAExecutionProvider", plan=_plan("ort_cuda", 1))
CPU = Needs("ort_cpu", provider="CPUExecutionProvider", plan=_plan("ort_cpu", 1))
BROKEN = "the NVIDIA driver does not answer (CUDA error 999)"
DRIVERLESS = {
    "driver": Library(error=BROKEN),
    "gpu": None,
    "gpu_error": "CUDA failed in cudaGetDeviceCount (cudaErrorInsufficientDriver): none; x.",
}


@pytest.fixture
def orin(tmp_path: Path) -> Machine:
    root = machines.orin_nano(tmp_path / "orin")
    return replace(
        look_at_machine(root, lambda _: Answer("NV Power Mode: MAXN\n")),
        packages={"python3-libnvinfer": "10.3.0"},
        sees_system_packages=True,
        in_container=False,
    )


@pytest.fixture
def pc(tmp_path: Path) -> Machine:
    return look_at_machine(machines.pc(tmp_path / "pc"))


@pytest.mark.parametrize("needs", [JP6, CUDA, CPU])
def test_what_is_complete_runs(needs: Needs, orin: Machine) -> None:
    assert judge(needs, orin, ON_ORIN).outcome == "run"


@pytest.mark.parametrize(
    ("needs", "change", "problem", "remedy"),
    [
        (JP6, DRIVERLESS, BROKEN, "JetPack"),
        (JP6, {"cuda_bindings": Library(error="cuda-bindings cannot be loaded (No module); x.")},
         "cannot be loaded", "edgechat[jetpack6]"),
        (JP6, {"cuda_bindings": Library("13.0.1")}, "newer than the driver", "edgechat[jetpack6]"),
        (CUDA, {"cuda_bindings": Library("13.0.1")}, "newer than the driver", "edgechat[jetpack6]"),
        (JP6, {"gpu": None, "gpu_error": "CUDA finds no GPU: none is visible; check nvidia-smi."},
         "finds no GPU", "check nvidia-smi"),
        (JP7, {}, "needs TensorRT 10.15 or later, here is 10.3.0", "--target jetson-jp6"),
        (CUDA, {"providers": {"CPUExecutionProvider": None}},
         "has no CUDAExecutionProvider", "Jetson AI Lab"),
        (CUDA, {"providers": {"CPUExecutionProvider": None},
                "onnxruntime_packages": ("onnxruntime", "onnxruntime-gpu")},
         "has no CUDAExecutionProvider", "pip uninstall onnxruntime onnxruntime-gpu"),
        (CUDA, {"providers": {"CUDAExecutionProvider": "CUDA error cudaErrorNoKernelImageForDevice:"
                              "no kernel image is available for execution on the device"}},
         "carries no code for sm_87", "built for your JetPack"),
        (CUDA, {"providers": {"CUDAExecutionProvider": "libcudnn.so.9: cannot open shared object"}},
         "does not work (libcudnn.so.9 is missing)", "nvidia-jetpack, which has libcudnn.so.9"),
        (replace(CPU, onnxruntime=(1, 32)), {}, "int8 KV cache needs ONNX Runtime 1.32", "-U"),
        (CPU, {"onnxruntime": Library(error="No module named 'onnxruntime'"), "providers": {}},
         "No module named", "edgechat[cpu]"),
        (replace(JP6, plan=_plan("tensorrt_10_3", 6)), {},
         "6,144 MiB of memory are needed but 4,980 MiB are free", "end other programs"),
    ],
)  # fmt: skip
def test_every_gap_has_its_remedy(
    needs: Needs, change: dict[str, Any], problem: str, remedy: str, orin: Machine
) -> None:
    verdict = judge(needs, orin, replace(ON_ORIN, **change))
    assert verdict.outcome == "cannot"
    (gap,) = verdict.gaps
    assert problem in gap.problem
    assert remedy in gap.remedy


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        ({"sees_system_packages": False}, "does not see", "--system-site-packages"),
        ({"packages": {}}, "not installed", "sudo apt install tensorrt"),
        ({"jetpack": "5.1.3"}, "JetPack 5.1.3", "flash JetPack 6"),
    ],
)
def test_where_tensorrt_is_on_a_jetson(
    change: dict[str, Any], problem: str, remedy: str, orin: Machine
) -> None:
    libraries = replace(ON_ORIN, tensorrt=Library(error="TensorRT cannot be loaded (x); y."))
    (gap,) = judge(JP6, replace(orin, **change), libraries).gaps
    assert problem in gap.problem
    assert remedy in gap.remedy


def test_a_jetson_bundle_on_a_pc(pc: Machine) -> None:
    """Everything is missing; what comes first is told first."""
    nothing = replace(
        ON_ORIN,
        **DRIVERLESS,
        cuda_bindings=Library(error="cuda-bindings cannot be loaded (No module); x."),
        tensorrt=Library(error="TensorRT cannot be loaded (No module); y."),
    )
    gaps = judge(JP6, pc, nothing).gaps
    assert [str(gap)[:8] for gap in gaps] == ["the NVID", "cuda-bin", "TensorRT"]
    assert "--target cpu" in gaps[0].remedy


def test_memory_is_that_of_the_card(pc: Machine) -> None:
    card = Gpu("A100", "8.0", 40 * GIB, GIB // 2, integrated=False)
    libraries = replace(ON_ORIN, gpu=card)
    assert judge(CUDA, pc, libraries).outcome == "run"  # the other half stays on the host
    small = replace(libraries, gpu=replace(card, free_memory=GIB // 4))
    (gap,) = judge(CUDA, pc, small, ways=lambda room: [f"{room.memory_gib} GiB"]).gaps
    assert gap.problem == "512 MiB of GPU memory are needed but 256 MiB are free"
    assert gap.remedy == "0.25 GiB, or end other programs"
    assert judge(CPU, pc, small).outcome == "run"


def test_building_may_swap(orin: Machine) -> None:
    """4.9 GiB of memory and 3.7 of swap are free."""
    engine = Engine("there is none yet", 9 * GIB)
    enough = replace(JP6, plan=_plan("tensorrt_10_3", 1, building_gib=8))
    assert judge(enough, orin, ON_ORIN, engine).outcome == "build"
    needs = replace(JP6, plan=_plan("tensorrt_10_3", 1, building_gib=10))
    (gap,) = judge(needs, orin, ON_ORIN, engine).gaps
    assert "10,240 MiB of memory but 8,790 MiB are free, swap included" in gap.problem
    assert "add 2 GiB of swap" in gap.remedy
    assert judge(needs, orin, ON_ORIN, Engine()).outcome == "run"


@pytest.mark.parametrize(
    ("engine", "outcome", "remedy"),
    [
        (Engine(), "run", ""),
        (Engine("there is none yet", 3 * GIB), "build", ""),
        (Engine("there is none yet", GIB), "cannot", "free some space"),
        (Engine("there is none yet", 3 * GIB, writable=False), "cannot", "copy the bundle"),
    ],
)
def test_an_engine_has_to_be_built(
    engine: Engine, outcome: str, remedy: str, orin: Machine
) -> None:
    verdict = judge(JP6, orin, ON_ORIN, engine)
    assert verdict.outcome == outcome
    assert remedy in " ".join(gap.remedy for gap in verdict.gaps)
    assert (verdict.why_build is not None) == (outcome == "build")


def test_a_container_without_the_gpu(orin: Machine) -> None:
    (gap,) = judge(CUDA, replace(orin, in_container=True), replace(ON_ORIN, **DRIVERLESS)).gaps
    assert "--runtime nvidia" in gap.remedy
