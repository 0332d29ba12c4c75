"""The device side stays light."""

from __future__ import annotations

import subprocess
import sys

NATIVE = ("edgechat.runtime.tensorrt.context", "edgechat.runtime.tensorrt_engine")  # need TensorRT
HEAVY = ("torch", "transformers", "onnx", "edgechat.export", "safetensors", "gguf")


def test_runtime_imports_nothing_heavy() -> None:
    code = (
        "import sys, pkgutil, importlib, edgechat.runtime as r\n"
        "names = [m.name for m in pkgutil.walk_packages(r.__path__, 'edgechat.runtime.')]\n"
        "assert 'edgechat.runtime.onnx_engine' in names\n"
        f"[importlib.import_module(n) for n in names if n not in {NATIVE!r}]\n"
        "import edgechat.chat\n"
        f"print([n for n in {HEAVY!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_device_with_tensorrt_alone_needs_no_onnxruntime() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import edgechat.chat, edgechat.cli.app, edgechat.runtime.tensorrt.engines\n"
        "from edgechat.cli import main; sys.argv = ['edgechat', 'bench', '--help']; main()"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
