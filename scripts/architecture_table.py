"""How exact is every architecture? Exports tiny random models of each and compares.

    python scripts/architecture_table.py          # all; or name some: … qwen3 gemma3

Prints, against transformers in float32 over 150 tokens fed in pieces: the largest difference of
a logit and the agreement of the most probable token for the fp32 bundle, the mean KL divergence
in nats for the int8 ones, and whether there are GGUF files of such a model. Exits with 1 when
an fp32 bundle differs by more than 0.001 or anywhere in the most probable token.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from tiny_models import (
    MODELS,
    bundle_logits,
    divergence,
    random_ids,
    transformers_logits,
    write_model,
)

from edgechat.export import export_model, open_source
from edgechat.export.sources.gguf_families import FAMILIES

CHUNKS = [1, 40, 7, 1, 1]
LARGEST = 1e-3
MILD = 0.1  # spread of the random weights at which logits follow inputs as smoothly as in practice


@dataclass
class Row:
    name: str
    difference: float
    agreement: float
    int8: float
    int8_weight: float
    gguf: bool

    @property
    def exact(self) -> bool:
        return self.difference < LARGEST and self.agreement == 1


def measure(name: str, folder: Path) -> Row:
    write_model(folder, name, initializer_range=MILD)
    source = open_source(str(folder), print)
    ids = random_ids(150)
    expected = transformers_logits(folder, ids)
    fp32, int8, int8_weight = (
        bundle_logits(export_model(source, folder / p, p).folder, ids, CHUNKS)
        for p in ("fp32", "int8", "int8-weight")
    )
    return Row(
        name=name,
        difference=float(np.abs(fp32 - expected).max()),
        agreement=float((fp32.argmax(1) == expected.argmax(1)).mean()),
        int8=divergence(expected, int8),
        int8_weight=divergence(expected, int8_weight),
        gguf=has_gguf(source.config),
    )


def has_gguf(config: dict[str, Any]) -> bool:
    """Whether a GGUF file can carry the model and edgechat reads it."""
    # llama.cpp has no name of its own for Mistral: its files say llama, and leave the window out
    model_type = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    windowed = bool(config.get("sliding_window")) and config.get("use_sliding_window", True)
    return any(
        family.model_type == model_type
        and not (windowed and "sliding_window" not in family.fields.values())
        for family in FAMILIES.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    names = parser.parse_args().models or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(MODELS)}")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print("| model | fp32: logits differ by | top-1 | int8: KL | int8-weight: KL | GGUF |")
    print("|---|---|---|---|---|---|")
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, Path(folder))
        print(
            f"| {row.name} | {row.difference:.1e} | {row.agreement:.0%} | {row.int8:.1e} "
            f"| {row.int8_weight:.1e} | {'yes' if row.gguf else 'no'} |",
            flush=True,
        )
        rows.append(row)
    if not all(row.exact for row in rows):
        sys.exit("an fp32 bundle differs from transformers")


if __name__ == "__main__":
    main()
