"""``edgechat verify`` trusts a bundle of its reference, and of nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import write_model

from edgechat.bundle import load_bundle
from edgechat.errors import EdgechatError
from edgechat.export import export_model, open_source
from edgechat.verify import Check, verify

pytestmark = pytest.mark.usefixtures("one_thread")
Run = Callable[..., subprocess.CompletedProcess[str]]
MODEL = ["logit difference", "top-1 agreement", "KL divergence", "greedy text"]
TEXT = ["chat template", "tokenizer"]


def failed(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.passed]


def test_a_table_with_a_verdict(run: Run, tiny_bundle: Path, tiny_folder: Path) -> None:
    done = run("verify", tiny_bundle, "--reference", tiny_folder)
    assert [name for name in MODEL + TEXT if not re.search(f"{name} .* ok ", done.stdout)] == []
    assert done.stdout.splitlines()[-1].startswith("trust it")


def test_other_weights_are_not_trusted(
    run: Run, tiny_bundle: Path, make_folder: Callable[..., Path]
) -> None:
    other = make_folder(seed=5)
    done = json.loads(run("verify", tiny_bundle, "--reference", other, "--json", code=1).stdout)
    assert not done["trusted"]
    assert [c["name"] for c in done["checks"] if not c["passed"]] == MODEL
    assert done["checks"][3]["values"]["first_difference"] == 1


@pytest.mark.parametrize("name", ["gemma3", "phi3 longrope", "qwen3 tied with windows", "falcon"])
def test_windows_and_lengths_are_compared_alike(name: str, tmp_path: Path) -> None:
    """Rotary that depends on the length is the cache's; windows are shorter than what is read."""
    write_model(tmp_path, name)
    bundle = export_model(open_source(str(tmp_path), print), tmp_path / "b", "fp32")
    checks = verify(bundle, tmp_path)
    assert failed(checks) == []
    read = checks[0].values["read"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert read is not None and read > 3 * (config.get("sliding_window") or 24)


@pytest.mark.parametrize("target", ["jetson-jp7", "jetson-jp6", "cuda"])
def test_gpu_bundles_run_on_the_cpu(target: str, tiny_folder: Path, tmp_path: Path) -> None:
    source = open_source(str(tiny_folder), print)
    bundle = export_model(source, tmp_path / "b", "fp16", target=target)
    assert failed(verify(bundle, tiny_folder)) == []


def test_another_template_or_tokenizer_is_named_with_its_place(
    tiny_bundle: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "template")
    path = tmp_path / "template" / "tokenizer_config.json"
    path.write_text(path.read_text().replace("assistant\\n", "assistant: "))
    shutil.copytree(tiny_folder, tmp_path / "tokenizer")
    path = tmp_path / "tokenizer" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"] = []
    path.write_text(json.dumps(tokenizer))
    for changed, name in (("template", "chat template"), ("tokenizer", "tokenizer")):
        checks = verify(load_bundle(tiny_bundle), tmp_path / changed)
        assert failed(checks) == [name]
        (note,) = (check.note for check in checks if check.name == name)
        assert re.search(r" for .* at \d+$", note)


def test_what_is_no_reference_is_refused_in_one_sentence(
    run: Run, tiny_bundle: Path, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    write_model(tmp_path / "qwen2", "qwen2")
    incomplete = shutil.copytree(make_folder(num_hidden_layers=2), tmp_path / "incomplete")
    config = json.loads((incomplete / "config.json").read_text())
    (incomplete / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    bundle = load_bundle(tiny_bundle)
    for reference, message in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path, "cannot load"),
        (tmp_path / "qwen2", "is a qwen2 model"),
        (make_folder(vocab_size=400), "vocab_size is 400"),
        (incomplete, "lacks weights"),
    ):
        with pytest.raises(EdgechatError, match=message) as caught:
            verify(bundle, reference)
        assert len(str(caught.value).splitlines()) == 1
    done = run("verify", tiny_bundle, "--reference", tmp_path / "qwen2", code=1)
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_real_model_against_its_gguf_file(smollm2_gguf: Path, smollm2_int8: Path) -> None:
    checks = verify(load_bundle(smollm2_int8), smollm2_gguf)
    assert failed(checks) == []
