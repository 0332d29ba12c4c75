"""Broken models, as users meet them: one sentence, exit code 1, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgechat.cli import main

Tensors = dict[str, np.ndarray]
NORM, UP = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
LORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


def edit_json(path: Path, **values: Any) -> None:
    data = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({k: v for k, v in data.items() if v != "DELETE"}))


def config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", **values)


def rope(**values: Any) -> Callable[[Path], None]:
    return config(rope_parameters={"rope_theta": 1e4, **values})


def quantised(**values: Any) -> Callable[[Path], None]:
    return config(quantization_config=values)


def tensors(change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        stored = load_file(folder / "model.safetensors")
        change(stored)
        save_file(stored, folder / "model.safetensors")

    return damage


def index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Two shards with an index, which is changed."""

    def damage(folder: Path) -> None:
        stored = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        shards = {"1.safetensors": {NORM: stored.pop(NORM)}, "2.safetensors": stored}
        for name, part in shards.items():
            save_file(part, folder / name)
        mapping: dict[str, Any] = {name: file for file, part in shards.items() for name in part}
        change(mapping)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))

    return damage


def cut(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(raw) and None


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def rename(name: str, other: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).rename(folder / other) and None


def links(name: str, target: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return damage


def becomes_folder(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def both(*damages: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda folder: [damage(folder) for damage in damages] and None


NAMED = [{"name": "a", "template": ""}, {"name": "b", "template": ""}]


def template(text: str) -> Callable[[Path], None]:
    return write("chat_template.jinja", text)


def gguf(content: bytes) -> Callable[[Path], list[str]]:
    def damage(folder: Path) -> list[str]:
        (folder / "m.gguf").write_bytes(content)
        return [str(folder / "m.gguf")]

    return damage


def with_adapter(
    *damages: Callable[[Path], object], inputs: int = 64, **settings: Any
) -> Callable[[Path], list[str]]:
    """An adapter of q_proj, damaged, beside the model."""

    def damage(folder: Path) -> list[str]:
        adapter = folder / "adapter"
        adapter.mkdir()
        values = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, **settings}
        (adapter / "adapter_config.json").write_text(json.dumps(values))
        ab = {"A": np.ones((4, inputs), "f4"), "B": np.ones((64, 4), "f4")}
        stored = {LORA.format(name): value for name, value in ab.items()}
        save_file(stored, adapter / "adapter_model.safetensors")
        for change in damages:
            change(adapter)
        return [str(folder), "--adapter", str(adapter)]

    return damage


def sparse(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TIED = config(tie_word_embeddings=True)
# damage: what is done to a model folder, or also the arguments of `edgechat export`; then what
# the sentence has to say
BREAK: dict[str, tuple[Callable[[Path], list[str] | None], str]] = {
    # configs
    "no config": (remove("config.json"), "no config.json"),
    "config is a folder": (becomes_folder("config.json"), "no config.json"),
    "config links to itself": (links("config.json", "config.json"), "no config.json"),
    "config not json": (write("config.json", "{"), "config.json is not valid JSON"),
    "config not text": (write("config.json", b"\xff\xfe{"), "config.json cannot be read"),
    "config a list": (write("config.json", "[]"), "no JSON object"),
    "config nested without end": (write("config.json", "[" * 99999), "not valid JSON"),
    "config of 300 MB": (sparse("config.json", 300 << 20), "far too many"),
    "unknown architecture": (config(model_type="mamba"), "'mamba'"),
    "no model_type": (config(model_type="DELETE"), "model_type"),
    "no layers": (config(num_hidden_layers="DELETE"), "num_hidden_layers"),
    "a billion layers": (config(num_hidden_layers=10**9), "1,000,000,000, which no model has"),
    "a trillion features": (config(hidden_size=10**12), "which no model has"),
    "text for a number": (config(hidden_size="64"), "hidden_size"),
    "huge number": (config(rms_norm_eps=10**400), "rms_norm_eps"),
    "heads": (config(num_key_value_heads=3), "KV heads"),
    "head size": (config(head_dim=20), "multiple of 16"),
    "activation": (config(hidden_act="relu"), "relu"),
    "unknown settings": (config(logit_softcap=30.0, alibi=True), "alibi = True"),
    "unknown rotary": (rope(rope_type="spiral"), "'spiral'"),
    "another model's rotary": (rope(rope_type="longrope"), "longrope"),
    "rotary without factor": (rope(rope_type="linear"), "'factor'"),
    "rotary with a huge factor": (rope(rope_type="linear", factor=10**400), "makes no sense"),
    "rotary base": (rope(rope_theta=float("inf")), "rope_theta"),
    # weights
    "no weights": (remove("model.safetensors"), "no model.safetensors"),
    "weights are a folder": (becomes_folder("model.safetensors"), "no model.safetensors"),
    "weights link nowhere": (links("model.safetensors", "/nowhere"), "no model.safetensors"),
    "pickle": (rename("model.safetensors", "pytorch_model.bin"), "save_pretrained"),
    "cut weights": (cut("model.safetensors"), "model.safetensors is damaged"),
    "empty weights": (write("model.safetensors", b""), "damaged"),
    "endless header": (write("model.safetensors", b"\xff" * 64), "damaged"),
    "nan": (tensors(lambda t: t[UP].__setitem__((3, 5), np.nan)), f"{UP} holds NaN"),
    "infinite": (tensors(lambda t: t[NORM].fill(np.inf)), f"{NORM} holds NaN or infinite"),
    "missing tensor": (tensors(lambda t: t.pop(NORM)), f"{NORM} is missing"),
    "unknown tensor": (
        tensors(lambda t: t.update({"score.weight": t[NORM]})),
        "gives no place to (score.weight)",
    ),
    "transposed": (tensors(lambda t: t.update({UP: t[UP].T.copy()})), "shape [64, 160]"),
    "integers": (tensors(lambda t: t.update({NORM: np.ones(64, "i4")})), "type I32"),
    "doubles": (tensors(lambda t: t.update({NORM: np.ones(64, "f8")})), "type F64"),
    "FP8 without scales": (
        tensors(lambda t: t.update({NORM: t[NORM].astype(ml_dtypes.float8_e5m2)})),
        "type F8_E5M2",
    ),
    "wrong size": (config(intermediate_size=99), "do not belong together"),
    "too many layers": (config(num_hidden_layers=4), "layers.3"),
    "too few layers": (config(num_hidden_layers=2), "and 6 more"),
    "a head beside a tied one": (TIED, "tie_word_embeddings to false"),
    "AWQ": (quantised(quant_method="awq"), "already quantised (awq); rounding it once more"),
    "GPTQ": (quantised(quant_method="gptq", bits=4), "already quantised (gptq, 4)"),
    "bitsandbytes": (quantised(quant_method="bitsandbytes", load_in_4bit=True), "4-bit"),
    "MXFP4": (quantised(quant_method="mxfp4"), "mxfp4"),
    "packed, not said": (
        tensors(lambda t: t.update({"q.qweight": np.ones(2, "i4")})),
        "already quantised (it holds q.qweight)",
    ),
    "FP8 in odd blocks": (quantised(quant_method="fp8", weight_block_size="big"), "'big'"),
    # shards
    "cut shard": (both(index(lambda m: None), cut("2.safetensors")), "2.safetensors is damaged"),
    "missing shard": (
        both(index(lambda m: None), remove("1.safetensors")),
        "1.safetensors is missing",
    ),
    "shard outside": (index(lambda m: m.update({NORM: "../1.safetensors"})), "points outside"),
    "shard anywhere": (index(lambda m: m.update({NORM: "/etc/passwd"})), "points outside"),
    "shard of no name": (index(lambda m: m.update({NORM: {}})), "is missing"),
    "index with one too many": (
        index(lambda m: m.update({"model.x": m[NORM]})),
        "not where it says (model.x)",
    ),
    "index with one too few": (
        index(lambda m: m.update({UP: "1.safetensors"})),
        f"not where it says ({UP})",
    ),
    "tensor not in the index": (index(lambda m: m.pop(UP)), f"does not name {UP}"),
    "index without a map": (index(lambda m: m.clear()), "no weight_map"),
    "index not json": (
        both(index(lambda m: None), write("model.safetensors.index.json", "{")),
        "not valid JSON",
    ),
    "tensor in two shards": (
        both(
            index(lambda m: m.update({"model.x": "3.safetensors"})),
            lambda folder: shutil.copy(folder / "1.safetensors", folder / "3.safetensors"),
        ),
        "is in both",
    ),
    # tokenizers and templates
    "no tokenizer": (remove("tokenizer.json"), "AutoTokenizer"),
    "tokenizer is a folder": (becomes_folder("tokenizer.json"), "AutoTokenizer"),
    "cut tokenizer": (cut("tokenizer.json"), "tokenizer"),
    "tokenizer of another model": (
        both(
            config(vocab_size=200),
            tensors(
                lambda t: t.update({k: v[:200].copy() for k, v in t.items() if v.shape[0] == 320})
            ),
        ),
        "260 tokens but the model only 200",
    ),
    "more embeddings than said": (config(vocab_size=300), "shape [320, 64]"),
    "no end token": (
        both(
            config(eos_token_id="DELETE"),
            remove("generation_config.json"),
            write("tokenizer_config.json", "{}"),
        ),
        "end-of-sequence",
    ),
    "end token outside": (config(eos_token_id=[2, 5000]), "outside"),
    "end token of text": (config(eos_token_id="</s>"), "whole numbers"),
    "settings not json": (write("tokenizer_config.json", "{"), "tokenizer_config.json is not"),
    "template without end": (template(ENDLESS), "does not come to an end"),
    "template calls itself": (
        template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        "calls itself without end",
    ),
    "huge template": (template("x" * 1_000_000), "1,000,000 characters"),
    "template not valid": (template("{% for %}"), "not valid"),
    "template of another file": (template("{% include '/etc/passwd' %}"), "cannot be used"),
    "template refuses all": (template("{{ raise_exception('no') }}"), "says: no"),
    "named templates": (
        write("chat_template.json", json.dumps({"chat_template": NAMED})),
        "(a, b) and none is called 'default'",
    ),
    # adapters
    "no adapter": (lambda folder: [str(folder), "--adapter", str(folder)], "is no adapter"),
    "adapter as model": (
        lambda folder: (with_adapter()(folder) or []) and [str(folder / "adapter")],
        "with --adapter",
    ),
    "adapter of another model": (with_adapter(inputs=32), "made for another one"),
    "adapter of DoRA": (with_adapter(use_dora=True), "use_dora"),
    "adapter of pickles": (
        with_adapter(rename("adapter_model.safetensors", "adapter_model.bin")),
        "adapter_model.bin (pickle",
    ),
    "cut adapter": (with_adapter(cut("adapter_model.safetensors")), "damaged"),
    "adapter of another rank": (with_adapter(r=8), "says rank 8"),
    # other sources
    "nowhere": (lambda folder: [str(folder / "nowhere")], "does not exist"),
    "empty folder": (
        lambda folder: (folder / "empty").mkdir() or [str(folder / "empty")],
        "no config.json",
    ),
    "a file that is no model": (lambda folder: [str(folder / "config.json")], "GGUF"),
    "revision of a folder": (
        lambda folder: [str(folder), "--revision", "main"],
        "is for hub ids",
    ),
    "revision with a trick": (
        lambda folder: ["who/what", "--revision", "../../x"],
        "no branch, tag or commit",
    ),
    "empty GGUF": (gguf(b""), "GGUF"),
    "GGUF without the rest": (gguf(b"GGUF\3\0\0\0"), "GGUF"),
    "GGUF of huge counts": (gguf(b"GGUF" + b"\xff" * 200), "GGUF"),
}
READ_FIRST = ("nan", "infinite", "a head beside a tied one")


def test_there_are_more_than_forty() -> None:
    assert len(BREAK) > 80


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("case", BREAK)
def test_a_broken_model_is_refused(
    case: str,
    dry: bool,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``--dry-run`` foretells what does not show only in the values of tensors."""
    if dry and case in READ_FIRST:
        return
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    damage, message = BREAK[case]
    args = damage(folder) or [str(folder)]
    options = ["-o", str(tmp_path / "out" / "b"), "-p", "fp32", *(["--dry-run"] if dry else [])]
    monkeypatch.setattr(sys, "argv", ["edgechat", "export", *args, *options])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    shown = capsys.readouterr()
    *progress, sentence = shown.err.strip().splitlines()
    assert all("layer" in line for line in progress if line)
    assert sentence.startswith("error: ")
    assert message in sentence
    assert dry or not shown.out
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
