"""Probes in processes of their own: real libraries, and ones that are broken in known ways."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgechat.doctor.ask import ask, complaint, run_program
from edgechat.doctor.libraries import look_at_libraries
from edgechat.doctor.tiny_graph import tiny_model

TENSORRT = "class Runtime: pass\n__version__ = {version!r}\n"


def test_the_tiny_model_is_valid() -> None:
    onnx.checker.check_model(onnx.load_from_string(tiny_model()), full_check=True)


def test_onnx_runtime_computes_here() -> None:
    facts = ask("onnxruntime")
    assert "CPUExecutionProvider" in facts["providers"]
    assert "AzureExecutionProvider" not in facts["providers"]
    assert ask("provider", "CPUExecutionProvider") == {}


def test_a_provider_that_is_not_there() -> None:
    """ONNX Runtime only warns and takes the CPU."""
    assert "RocketExecutionProvider" in ask("provider", "RocketExecutionProvider")["error"]


def test_what_onnx_runtime_logs_of_a_provider_without_its_libraries() -> None:
    """onnxruntime-gpu 1.31.1 on a PC without CUDA."""
    source = "/onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043"
    log = (
        "\x1b[1;31m2026-12-01 00:43:24.686969892 [E:onnxruntime:Default, "
        f"provider_bridge_ort.cc:2458 operator()] {source} "
        "onnxruntime::Provider& onnxruntime::ProviderLibrary::Get() "
        "[ONNXRuntimeError] : 1 : FAIL : Failed to load library libonnxruntime_providers_cuda.so "
        "with error: libcublasLt.so.13: cannot open shared object file: No such file or directory\n"
        "\x1b[m\n\x1b[0;93m2026-12-01 00:43:24.699816513 [W:onnxruntime:Default, "
        "onnxruntime_pybind_state.cc:1295 CreateExecutionProviderFactoryInstance] Failed to create "
        "CUDAExecutionProvider.\x1b[m\n"
    )
    told = complaint(log)
    assert told.startswith("Failed to load library")
    assert "libcublasLt.so.13: cannot open shared object file" in told


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes modules that child processes find first."""

    def make(name: str, code: str) -> None:
        path = tmp_path / name / "__init__.py"
        path.parent.mkdir(parents=True)
        path.write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return make


def test_tensorrt(module: Any) -> None:
    module("tensorrt", TENSORRT.format(version="10.3.0"))
    assert ask("tensorrt") == {"version": "10.3.0"}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "is empty"),  # what tensorrt-stubs leaves
        ("raise ImportError('libnvinfer.so.10: cannot open shared object file')", "libnvinfer"),
        (TENSORRT.format(version="8.5.2"), "older"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed (SIGSEGV)"),
        ("import sys; sys.exit('no licence')", "exit code 1: no licence"),
    ],
)
def test_tensorrt_that_does_not_load(code: str, why: str, module: Any) -> None:
    module("tensorrt", code)
    assert why in ask("tensorrt")["error"]


def test_cuda_bindings_without_a_driver(module: Any) -> None:
    """What cuda-bindings answers then."""
    module("cuda/bindings", "__version__ = '13.0.1'")
    module(
        "cuda/bindings/runtime",
        "import enum\n"
        "class cudaError_t(enum.IntEnum):\n    cudaSuccess, cudaErrorInsufficientDriver = 0, 35\n"
        "cudaGetDeviceCount = lambda: (cudaError_t(35), 0)\n"
        "cudaRuntimeGetVersion = lambda: (cudaError_t(0), 13000)\n",
    )
    facts = ask("cuda")
    assert (facts["version"], facts["runtime"]) == ("13.0.1", "13.0")
    assert "there is no NVIDIA driver" in facts["gpu_error"]


def test_a_driver_that_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("garbage")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "the NVIDIA driver cannot be loaded" in ask("driver")["error"]


def test_a_probe_that_hangs(module: Any) -> None:
    module("tensorrt", "import time; time.sleep(60)")
    assert ask("tensorrt", seconds=1.5) == {"error": "no answer within 2 s"}


def test_a_module_in_the_current_folder_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit('wrong one')")
    monkeypatch.chdir(tmp_path)
    assert "version" in ask("onnxruntime")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["no-such-program"], "No such file"),
        ([sys.executable, "-c", "import sys; sys.exit('not root')"], "exit code 1: not root"),
    ],
)
def test_a_program_that_fails_says_why(command: list[str], why: str) -> None:
    assert why in (run_program(command).error or "")


def test_all_libraries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of a Thor as its probes give them."""
    answers: dict[tuple[str, ...], dict[str, Any]] = {
        ("onnxruntime",): {"version": "1.24.0", "providers": ["CUDAExecutionProvider"]},
        ("provider", "CUDAExecutionProvider"): {"error": "no kernel image is available"},
        ("driver",): {"version": "13.0"},
        ("cuda",): {
            "version": "13.0.1",
            "runtime": "13.0",
            "gpu": {
                "name": "NVIDIA Thor",
                "compute_capability": "11.0",
                "memory": 1 << 37,
                "free_memory": 1 << 36,
                "integrated": True,
            },
        },
        ("cudnn",): {"error": "not found"},
        ("tensorrt",): {"version": "10.13.3"},
    }
    found = look_at_libraries(lambda *arguments: answers[arguments])
    assert found.providers == {"CUDAExecutionProvider": "no kernel image is available"}
    assert found.gpu is not None and found.gpu.compute_capability == "11.0"
    assert (found.cudnn.version, found.cudnn.error) == (None, "not found")
