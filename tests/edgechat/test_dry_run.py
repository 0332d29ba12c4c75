"""``export --dry-run`` says what an export would make, from configs and headers alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from edgechat.bundle import load_bundle

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_it_foretells_the_bundle(
    run: Run, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder, target = make_folder(vocab_size=9000), tmp_path / "b"
    options = [folder, "-o", target, "--capacity", "128", "--kv", "int8"]
    found = json.loads(run("export", *options, "--dry-run", "--json").stdout)
    assert not target.exists()
    run("export", *options)
    manifest = load_bundle(target).manifest
    assert found["dims"] == {k: v for k, v in vars(manifest.dims).items()}
    assert (found["capacity"], found["kv_dtype"]) == (manifest.max_capacity, manifest.kv_dtype)
    assert found["kv_bytes_per_token"] == manifest.kv_bytes_per_slot
    assert found["eos"] == list(manifest.tokens.eos)
    assert found["steps"] == manifest.quantization["steps"]
    made = sum(info.size for info in manifest.files.values())
    assert made <= found["bundle_bytes"] < 1.1 * made + (8 << 20)
    stored = load_file(folder / "model.safetensors")
    assert found["parameters"] == sum(tensor.size for tensor in stored.values())
    again = run("export", *options, "--dry-run", code=1)
    assert "--overwrite" in again.stderr
    assert "chat template" in again.stdout


def test_it_reads_no_tensor(run: Run, make_folder: Callable[..., Path]) -> None:
    """What stands in the tensors cannot be known: an export would refuse these."""
    folder = make_folder()
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {k: np.full_like(v, np.nan) for k, v in tensors.items()}, folder / "model.safetensors"
    )
    run("export", folder, "--dry-run")


def test_it_names_all_that_is_in_the_way(run: Run, make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    config = json.loads((folder / "config.json").read_text())
    config.update(alibi=True, attention_gain=2)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages.nothing.at.all }}")
    done = run("export", folder, "--dry-run", "--json", code=1)
    problems = json.loads(done.stdout)["problems"]
    assert len(problems) == 2
    for name in ("alibi = True", "attention_gain = 2", "chat_template.jinja"):
        assert name in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
