"""The table of architectures can be made by its one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "architecture_table.py"


def test_table_of_two_models() -> None:
    command = [sys.executable, str(SCRIPT), "qwen3", "gpt_neox"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in cells] == ["qwen3", "gpt_neox"]
    for _, difference, agreement, int8, int8_weight, gguf in cells:
        assert float(difference) < 1e-3
        assert 0 < float(int8_weight) < float(int8) < 0.006
        assert (agreement, gguf) == ("100%", "yes")
