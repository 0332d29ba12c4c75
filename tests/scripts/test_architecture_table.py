"""The table of architectures is made by its one command, and leaves none out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import test_gguf
import transformers
from tiny_models import MODELS

from edgechat.export.architectures import ARCHITECTURES

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "architecture_table.py"


def model_types(names: list[str]) -> set[str]:
    return {getattr(transformers, f"{MODELS[name][0]}Config").model_type for name in names}


@pytest.mark.slow
def test_every_architecture_is_exact_and_quantises_well() -> None:
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in cells] == list(MODELS)
    known = {name for architecture in ARCHITECTURES for name in architecture.model_types}
    assert model_types([row[0] for row in cells]) == known
    for _, difference, agreement, int8, int8_weight, _ in cells:
        assert float(difference) < 1e-4
        assert agreement == "100%"
        assert 0 < float(int8_weight) < float(int8) < 0.006
    readable = [row[0] for row in cells if row[5] == "yes"]
    assert model_types(readable) == model_types(list(test_gguf.ARCHITECTURES))
