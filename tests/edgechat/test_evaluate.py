"""eval and bench: the numbers are what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from edgechat.bundle import load_bundle
from edgechat.cli.app import app
from edgechat.errors import EdgechatError
from edgechat.evaluate import Reader, evaluate
from edgechat.settings import Settings

IDS = np.random.default_rng(0).integers(3, 259, size=200)
TEXT = "The quick brown fox jumps over the lazy dog. " * 20


def test_perplexity_equals_transformers(tiny_folder: Path, tiny_bundle: Path) -> None:
    reader = Reader(load_bundle(tiny_bundle), Settings(policy="full"), 256)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(IDS)[None]
    with torch.no_grad():
        whole = float(model(ids, labels=ids).loss)
        halves = [float(model(x, labels=x).loss) for x in (ids[:, :100], ids[:, 100:])]
    assert evaluate(reader, IDS).losses.mean() == pytest.approx(whole, abs=1e-4)
    score = evaluate(reader, IDS, context=100)
    assert score.losses.mean() == pytest.approx(np.mean(halves), abs=1e-4)


def test_a_bundle_agrees_with_itself(tiny_bundle: Path) -> None:
    readers = [Reader(load_bundle(tiny_bundle), Settings(), 64) for _ in range(2)]
    score = evaluate(readers[0], IDS, reference=readers[1])
    assert score.kl == pytest.approx(0, abs=1e-6)
    assert score.top1 == 1


def invoke(*args: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_eval_command(tiny_bundle: Path, tmp_path: Path) -> None:
    text, plot = tmp_path / "t.txt", tmp_path / "p.png"
    text.write_text(TEXT)
    out = invoke("eval", tiny_bundle, text, "--tokens", "300", "--window", "60", "--plot", plot)
    assert "perplexity" in out
    assert plot.read_bytes().startswith(b"\x89PNG")
    options = ["--context", "100", "--tokens", "250", "--against", tiny_bundle, "--json"]
    data = json.loads(invoke("eval", tiny_bundle, text, *options))
    assert data["tokens"] == 99 + 99 + 49
    assert data["top1_agreement"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "1"], "at least 2"),
        (["--context", "9999"], "--capacity"),
        (["--policy", "full"], "room|full"),
        (["--plot", "/nowhere/x.png"], "could not be written"),
    ],
)
def test_eval_errors(options: list[str], message: str, tiny_bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text(TEXT)
    with pytest.raises(EdgechatError, match=message):
        invoke("eval", tiny_bundle, text, *options)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe"])
def test_texts_that_cannot_be_scored(content: bytes, tiny_bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_bytes(content)
    with pytest.raises(EdgechatError):
        invoke("eval", tiny_bundle, text)


def test_bench_command(tiny_bundle: Path, tmp_path: Path) -> None:
    plot = tmp_path / "p.png"
    data = json.loads(invoke("bench", tiny_bundle, "--rounds", "1", "--json", "--plot", plot))
    assert data["prefill_tokens_per_second"].keys() == {"128"}
    assert data["decode_tokens_per_second"]["128"]["median"] > 0
    assert data["later_turn_seconds"]["median"] < data["later_turn_refed_seconds"]["median"]
    assert plot.exists()
    assert "bandwidth" in invoke("bench", tiny_bundle, "--rounds", "1")
