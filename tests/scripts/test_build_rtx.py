"""The figures of Jetson bundles that need no device can be made by their one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.bundle import load_bundle
from edgechat.evaluate import Reader, evaluate, read_ids
from edgechat.export import export_model, open_source
from edgechat.settings import Settings

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_rtx.py"
TEXT = "It is a truth universally acknowledged, that a single man is in want of a wife. " * 8


def test_perplexity_is_that_of_the_cpu_bundle(
    tiny_folder: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """In windows as long as the cache, and beside it that of a quantised bundle."""
    source, book = open_source(str(tiny_folder), print), tmp_path / "book.txt"
    book.write_text(TEXT)
    bundles = [
        export_model(source, tmp_path / p, p, capacity=64, target="jetson-jp6").folder
        for p in ("fp32", "int8")
    ]
    command = [sys.executable, SCRIPT, *bundles, "--perplexity", book, "--tokens", "300"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    fp32, int8 = ([c.strip() for c in x.split("|")[1:-1]] for x in done.stdout.splitlines()[2:])
    cpu = load_bundle(tiny_bundle)
    reader = Reader(cpu, Settings(policy="full"), 64)
    expected = evaluate(reader, read_ids(cpu, TEXT, 300), context=64).perplexity
    assert fp32[0] == "fp32"
    assert float(fp32[1]) == pytest.approx(expected, rel=1e-3)
    assert float(int8[1]) / float(fp32[1]) - 1 == pytest.approx(float(int8[2][:-1]) / 100, abs=1e-3)
