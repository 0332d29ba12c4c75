"""The device side stays light."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "onnx", "edgechat.export", "safetensors", "gguf")


def test_runtime_imports_nothing_heavy() -> None:
    code = (
        "import sys, pkgutil, importlib, edgechat.runtime as r\n"
        "names = [m.name for m in pkgutil.walk_packages(r.__path__, 'edgechat.runtime.')]\n"
        "assert 'edgechat.runtime.onnx_engine' in names\n"
        "[importlib.import_module(n) for n in names]\n"
        "import edgechat.chat\n"
        f"print([n for n in {HEAVY!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
