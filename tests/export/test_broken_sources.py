"""Broken models are refused in one sentence and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgechat.errors import BundleError, EdgechatError
from edgechat.export import export_model, open_source


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data.update(values)
    path.write_text(json.dumps({k: v for k, v in data.items() if v != "DELETE"}))


def edit_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def nan(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BREAK: dict[str, tuple[Callable[[Path], object], str]] = {
    "unknown architecture": (lambda f: edit_config(f, model_type="mamba"), "'mamba'"),
    "no model_type": (lambda f: edit_config(f, model_type="DELETE"), "model_type"),
    "unknown rotary": (
        lambda f: edit_config(f, rope_parameters={"rope_type": "longrope", "rope_theta": 1e4}),
        "longrope",
    ),
    "rotary without factor": (
        lambda f: edit_config(f, rope_parameters={"rope_type": "linear", "rope_theta": 1e4}),
        "'factor'",
    ),
    "unknown setting": (lambda f: edit_config(f, logit_softcap=30.0), "logit_softcap"),
    "activation": (lambda f: edit_config(f, hidden_act="relu"), "relu"),
    "quantised": (
        lambda f: edit_config(f, quantization_config={"quant_method": "awq"}),
        "already quantised (awq); rounding it once more",
    ),
    "bitsandbytes": (
        lambda f: edit_config(
            f, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}
        ),
        "bitsandbytes, 4-bit",
    ),
    "packed, not said": (
        lambda f: edit_tensors(f, lambda t: t.update({"model.q.qweight": np.ones(2, "i4")})),
        "already quantised (it holds model.q.qweight)",
    ),
    "FP8 with other blocks": (
        lambda f: edit_config(
            f, quantization_config={"quant_method": "fp8", "weight_block_size": "big"}
        ),
        "weight_block_size",
    ),
    "no layers": (lambda f: edit_config(f, num_hidden_layers="DELETE"), "num_hidden_layers"),
    "text for a number": (lambda f: edit_config(f, hidden_size="64"), "hidden_size"),
    "heads": (lambda f: edit_config(f, num_key_value_heads=3), "KV heads"),
    "head size": (lambda f: edit_config(f, head_dim=20), "multiple of 16"),
    "too many layers": (lambda f: edit_config(f, num_hidden_layers=4), "layers.3"),
    "wrong shape": (lambda f: edit_config(f, intermediate_size=99), "do not belong together"),
    "no eos": (
        lambda f: (
            edit_config(f, eos_token_id="DELETE"),
            (f / "generation_config.json").unlink(missing_ok=True),
            (f / "tokenizer_config.json").write_text("{}"),
        ),
        "end-of-sequence",
    ),
    "eos outside": (lambda f: edit_config(f, eos_token_id=[2, 5000]), "outside"),
    "config not json": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "no JSON object"),
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "cut weights": (lambda f: cut(f / "model.safetensors"), "damaged"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
    "pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "save_pretrained",
    ),
    "nan": (lambda f: edit_tensors(f, nan), "NaN"),
    "missing tensor": (
        lambda f: edit_tensors(f, lambda t: t.__delitem__("model.norm.weight")),
        "model.norm.weight is missing",
    ),
    "integer tensor": (
        lambda f: edit_tensors(
            f, lambda t: t.update({"model.norm.weight": np.ones(64, dtype=np.int32)})
        ),
        "I32",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "AutoTokenizer"),
    "cut tokenizer": (lambda f: cut(f / "tokenizer.json"), "tokenizer"),
    "unknown weights": (
        lambda f: edit_tensors(f, lambda t: t.update({"score.weight": np.ones((2, 64), "f")})),
        "gives no place to (score.weight)",
    ),
    "too few layers": (lambda f: edit_config(f, num_hidden_layers=2), "and 6 more"),
    "a head beside a tied one": (
        lambda f: edit_config(f, tie_word_embeddings=True),
        "tie_word_embeddings to false",
    ),
    "shard outside": (
        lambda f: edit_index(f, lambda m: m.update({"model.norm.weight": "../x.safetensors"})),
        "outside the model folder",
    ),
    "missing shard": (
        lambda f: edit_index(f, lambda m: m.update({"model.norm.weight": "x.safetensors"})),
        "x.safetensors is missing",
    ),
    "index with a tensor too many": (
        lambda f: edit_index(f, lambda m: m.update({"model.x": m["model.norm.weight"]})),
        "not where it says (model.x)",
    ),
    "index without a tensor": (
        lambda f: edit_index(f, lambda m: m.pop("model.norm.weight")),
        "does not name model.norm.weight",
    ),
    "index without a map": (lambda f: edit_index(f, lambda m: m.clear()), "no weight_map"),
    "a tensor in two shards": (
        lambda f: edit_index(f, lambda m: m.update({"model.x": copy_shard(f)})),
        "is in both",
    ),
}


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Turn the one file into a shard with an index, and change that."""
    file = folder / "model.safetensors"
    mapping: dict[str, Any] = dict.fromkeys(load_file(file), "model-1.safetensors")
    file.rename(folder / "model-1.safetensors")
    change(mapping)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))


def copy_shard(folder: Path) -> str:
    (folder / "model-2.safetensors").write_bytes((folder / "model-1.safetensors").read_bytes())
    return "model-2.safetensors"


@pytest.mark.parametrize("case", BREAK)
def test_broken_folder(case: str, make_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_folder()
    damage, message = BREAK[case]
    damage(folder)
    with pytest.raises(EdgechatError) as caught:
        export_model(open_source(str(folder), print), tmp_path / "out" / "b", "fp32")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_tokenizer_larger_than_the_embedding(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder(vocab_size=200)
    with pytest.raises(EdgechatError, match="do not belong together"):
        export_model(open_source(str(folder), print), tmp_path / "b", "fp32")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\xff" * 200, b"not a model"])
def test_broken_gguf(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(EdgechatError, match="GGUF"):
        open_source(str(path), print)


@pytest.mark.parametrize("name", ["nowhere", "no/where/at/all", "m.gguf", ""])
def test_models_that_do_not_exist(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EdgechatError):
        open_source(name or "empty", print)


def test_an_existing_folder_is_kept(tiny_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "b"
    source = open_source(str(tiny_folder), print)
    export_model(source, target, "fp32")
    before = (target / "edgechat.json").read_bytes()
    with pytest.raises(BundleError, match="--overwrite"):
        export_model(source, target, "int8")
    assert (target / "edgechat.json").read_bytes() == before
    export_model(source, target, "int8", overwrite=True)
    assert (target / "edgechat.json").read_bytes() != before
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_overwrite_never_replaces_what_is_no_bundle(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "photo").write_text("x")
    with pytest.raises(BundleError, match="no bundle"):
        export_model(
            open_source(str(tiny_folder), print), tmp_path / "precious", "fp32", overwrite=True
        )
    assert (tmp_path / "precious" / "photo").read_text() == "x"


def test_a_disk_that_fills_up_leaves_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    """A file size limit makes writes fail in the middle, as a full disk does."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)\n"
        "from edgechat.cli import main\n"
        f"sys.argv = ['edgechat', 'export', {str(tiny_folder)!r}, '-o', 'out/b', '-p', 'fp32']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_sigterm_in_the_middle_leaves_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "import edgechat.export.export as e\n"
        "from edgechat.cli import main\n"
        "e.write_manifest = lambda *a: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.argv = ['edgechat', 'export', {str(tiny_folder)!r}, '-o', 'b', '-p', 'fp32']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_kill_in_the_middle_leaves_no_bundle_and_the_next_export_tidies_up(
    tiny_folder: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys\n"
        "import edgechat.export.export as e\n"
        "from edgechat.export import export_model, open_source\n"
        "from pathlib import Path\n"
        "e.write_manifest = lambda *a: os.kill(os.getpid(), 9)\n"
        f"export_model(open_source({str(tiny_folder)!r}, print), Path('b'), 'fp32')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert not (tmp_path / "b").exists()
    assert len(list(tmp_path.iterdir())) == 1
    export_model(open_source(str(tiny_folder), print), tmp_path / "b", "fp32")
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
