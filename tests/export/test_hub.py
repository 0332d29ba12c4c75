"""Hub ids come from huggingface_hub's cache where nothing may be fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OLD, NEW = "a" * 40, "b" * 40
EXPORT = [sys.executable, "-c", "from edgechat.cli import main; main()", "export"]


@pytest.fixture(scope="module")
def home(make_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as the hub's client makes it, with two commits of who/tiny."""
    home = tmp_path_factory.mktemp("hf-home")
    repository = home / "hub" / "models--who--tiny"
    for commit, layers in ((OLD, 2), (NEW, 3)):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in make_folder(num_hidden_layers=layers).iterdir():
            blob = repository / "blobs" / f"{commit[0]}-{file.name}"
            blob.parent.mkdir(exist_ok=True)
            blob.write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(NEW)
    (repository / "refs" / "v1").write_text(OLD)
    pickled = home / "hub" / "models--who--pickled"
    (pickled / "snapshots" / OLD).mkdir(parents=True)
    (pickled / "snapshots" / OLD / "config.json").write_text('{"model_type": "llama"}')
    (pickled / "refs").mkdir()
    (pickled / "refs" / "main").write_text(OLD)
    return home


def export(home: Path, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXPORT, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"},
    )


@pytest.mark.parametrize(("revision", "commit"), [(None, NEW), ("v1", OLD), (OLD, OLD)])
def test_a_cached_snapshot_is_used(
    revision: str | None, commit: str, home: Path, tmp_path: Path
) -> None:
    options = [] if revision is None else ["--revision", revision]
    done = export(home, tmp_path, "who/tiny", "-p", "fp32", *options)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "tiny-fp32" / "edgechat.json").read_text())
    assert manifest["name"] == "who/tiny"
    assert commit in manifest["source"]
    assert manifest["dims"]["num_layers"] == (3 if commit == NEW else 2)


REFUSED = {
    "never fetched": (["who/else"], "hf download who/else"),
    "another revision": (["who/tiny", "--revision", "v2"], "--revision v2"),
    "a trick": (["who/tiny", "--revision", "../../../etc"], "no branch, tag or commit"),
    "no hub id": (["smollm2", "--revision", "main"], "--revision main is for hub ids"),
    "no safetensors": (["who/pickled"], "save_pretrained"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fetched_is_told_with_the_remedy(
    case: str, home: Path, tmp_path: Path
) -> None:
    args, message = REFUSED[case]
    done = export(home, tmp_path, *args)
    error = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert error.startswith("error: ")
    assert message in error
    assert not list(tmp_path.iterdir())
