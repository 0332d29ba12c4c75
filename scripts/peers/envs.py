"""One virtual environment a peer, made with pip from pinned versions and kept in the workdir.

Separate environments because the peers pin each other's dependencies, and because torch, the
largest of them, is then installed once, where it is needed: to run transformers, to write the
Hugging Face folder, and to run onnxruntime-genai's model builder.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peers.steps import run_logged

GENAI = ("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "numpy==2.4.6")
GGUF = "gguf==0.19.0"


@dataclass(frozen=True)
class Environment:
    packages: tuple[str, ...]
    pip_options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


ENVIRONMENTS: dict[str, Environment] = {
    # Compiled here, for this CPU: the point of `--no-binary` and of ignoring pip's cache of
    # wheels, which may come from another machine. Takes a compiler and some minutes.
    "llamacpp": Environment(
        ("llama-cpp-python==0.3.36", GGUF, "numpy==2.4.6"),
        pip_options=("--no-binary", "llama-cpp-python", "--no-cache-dir"),
        variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"},
    ),
    "genai": Environment(GENAI),
    # On Linux x86-64 the default torch wheel brings CUDA: set PIP_EXTRA_INDEX_URL (or a pip
    # configuration) to PyTorch's CPU index first if the disk is small. Speed on CPU is the same.
    "torch": Environment(
        (
            *GENAI,
            GGUF,
            "torch==2.13.0",
            "transformers==5.24.0",
            "accelerate==1.15.0",
            "onnx==1.23.2",
            "onnx-ir==1.1.0",
        )
    ),
}


def python_of(name: str, workdir: Path) -> Path:
    """The interpreter of an environment, which is made first if it is missing or out of date."""
    wanted = ENVIRONMENTS[name]
    folder = workdir / "envs" / name
    python = folder / "bin" / "python"
    stamp = folder / "edgechat-peers.json"
    state = json.dumps([sys.version, wanted.packages, dict(wanted.variables)])
    if stamp.is_file() and stamp.read_text() == state:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    logs = workdir / "logs"
    run_logged(f"make environment {name}", [sys.executable, "-m", "venv", str(folder)], logs)
    command = [str(python), "-m", "pip", "install", *wanted.pip_options, *wanted.packages]
    run_logged(f"install {', '.join(wanted.packages)}", command, logs, wanted.variables)
    stamp.write_text(state)
    return python
