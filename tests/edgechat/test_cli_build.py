"""``edgechat build`` without a GPU: one sentence, or a build ahead of time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgechat.errors import EngineError
from edgechat.export import export_model, open_source
from edgechat.runtime.tensorrt.api import load_rtx, load_tensorrt

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def exported(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, folder = open_source(str(tiny_folder), print), tmp_path_factory.mktemp("b") / "jp7"
    return export_model(source, folder, "fp16", capacity=64, target="jetson-jp7").folder


@pytest.mark.parametrize("command", [["build"], ["run", "--prompt", "Hi"], ["bench"]])
def test_without_tensorrt_every_command_ends_in_a_sentence(
    command: list[str], exported: Path, run: Run
) -> None:
    try:
        load_tensorrt()
    except EngineError:
        told = run(command[0], exported, *command[1:], code=1).stderr
    else:
        pytest.skip("TensorRT is installed")
    assert "'tensorrt'" in told
    assert "--target cpu" in told
    assert len(told.strip().splitlines()) == 1
    assert not (exported / "engines").exists()


def test_options_that_do_not_go_together(exported: Path, tiny_bundle: Path, run: Run) -> None:
    assert "goes with --dry-run" in run("build", exported, "--gpu", "SM86", code=1).stderr
    for absurd in ("0", str(1 << 80)):
        assert "must be 1 to" in run("build", exported, "--workspace", absurd, code=1).stderr
    assert "needs no building" in run("build", tiny_bundle, code=1).stderr
    assert "needs no building" in run("build", tiny_bundle, "--dry-run", code=1).stderr
    told = run("build", exported, "--dry-run", "--gpu", "SM87", code=1).stderr
    assert "choose SM86" in told


def test_a_dry_run_builds_with_nvidias_builder_and_keeps_nothing(exported: Path, run: Run) -> None:
    try:
        load_rtx()
    except EngineError as error:
        assert "edgechat[rtx]" in run("build", exported, "--dry-run", code=1).stderr
        pytest.skip(str(error))
    shown = run("build", exported, "--dry-run", "--json").stdout
    built = json.loads(shown)["built"]
    assert [row["gpu"] for row in built] == ["SM86", "SM120"]
    assert all(row["cache_updates_in_place"] == 6 for row in built)
    assert not (exported / "engines").exists()
    assert "fused attentions" in run("build", exported, "--dry-run", "--gpu", "SM89").stdout
