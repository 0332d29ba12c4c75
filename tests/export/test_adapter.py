"""A LoRA adapter merged at export answers as the model that peft merges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file
from tiny_models import bundle_logits, random_ids, write_model, write_tokenizer
from transformers import AutoModelForCausalLM

from edgechat.errors import EdgechatError
from edgechat.export import export_model, open_source

Q_AND_MLP = dict(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"])


def write_adapter(base: Path, folder: Path, **settings: Any) -> np.ndarray:
    """Save a random adapter of ``base`` with peft; returns logits of random ids of what peft
    merges when it loads that."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(init_lora_weights=False, **settings))
    for name, parameter in adapted.named_parameters():
        if "modules_to_save" in name or (name.endswith("bias") and parameter.requires_grad):
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, folder).merge_and_unload()
    with torch.no_grad():
        ids = torch.from_numpy(random_ids(60))[None]
        logits: np.ndarray = merged.eval()(ids).logits[0].numpy()
    return logits


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", Q_AND_MLP),
    "rslora": ("llama", {**Q_AND_MLP, "use_rslora": True}),
    "patterns": (
        "llama",
        {
            **Q_AND_MLP,
            "rank_pattern": {"down_proj": 8, r"layers\.1\.self_attn\.q_proj": 2},
            "alpha_pattern": {"^model.layers.2.self_attn.q_proj": 32, "q_proj": 2},
        },
    ),
    "embedding and head": ("llama", dict(r=4, target_modules=["embed_tokens", "lm_head"])),
    "modules to save": (
        "llama",
        dict(target_modules=["v_proj"], modules_to_save=["lm_head", "input_layernorm"]),
    ),
    "packed, every linear": ("phi3", dict(target_modules="all-linear", lora_alpha=4)),
    "grouped, biases": (
        "gpt_neox",
        dict(target_modules=["query_key_value", "dense_h_to_4h"], bias="all"),
    ),
    "fan_in_fan_out of a linear": ("llama", {**Q_AND_MLP, "fan_in_fan_out": True}),
    "some layers": ("falcon", dict(target_modules=["dense"], layers_to_transform=[1])),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_merged_at_export_as_by_peft(case: str, tmp_path: Path) -> None:
    name, settings = CASES[case]
    base, adapter = tmp_path / "base", tmp_path / "my-adapter"
    write_model(base, name)
    expected = write_adapter(base, adapter, **settings)
    source = open_source(str(base), print, adapter)
    bundle = export_model(source, tmp_path / "b", "fp32")
    logits = bundle_logits(bundle.folder, random_ids(60))
    assert np.abs(logits - expected).max() < 1e-3
    plain = export_model(open_source(str(base), print), tmp_path / "plain", "fp32")
    assert np.abs(bundle_logits(plain.folder, random_ids(60)) - expected).max() > 0.05
    assert bundle.manifest.adapter
    assert bundle.manifest.adapter.name == "my-adapter"
    assert plain.manifest.adapter is None


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny Llama and an adapter of it."""
    root = tmp_path_factory.mktemp("adapted")
    write_model(root / "base", "llama")
    write_adapter(root / "base", root / "adapter", **Q_AND_MLP)
    return root / "base", root / "adapter"


@pytest.fixture
def copies(adapted: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    for folder in adapted:
        (tmp_path / folder.name).mkdir()
        for file in folder.iterdir():
            (tmp_path / folder.name / file.name).write_bytes(file.read_bytes())
    return tmp_path / "base", tmp_path / "adapter"


def test_the_tokenizer_of_the_adapter_comes_first(copies: tuple[Path, Path]) -> None:
    """Trainers save the one they trained with beside the adapter."""
    base, adapter = copies
    write_tokenizer(adapter, "{{ 'theirs' }}")
    assert open_source(str(base), print, adapter).text().chat_templates == {
        "default": "{{ 'theirs' }}"
    }
    write_tokenizer(adapter, None)
    expected = open_source(str(base), print).text().chat_templates
    assert open_source(str(base), print, adapter).text().chat_templates == expected


def edit(adapter: Path, **values: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_tensors(adapter: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, adapter / "adapter_model.safetensors")


LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
OTHER = np.zeros((4, 4), dtype=np.float32)
BREAK: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "DoRA": (lambda b, a: edit(a, use_dora=True), "use_dora"),
    "another kind": (lambda b, a: edit(a, peft_type="IA3"), "'IA3'"),
    "PiSSA": (lambda b, a: edit(a, init_lora_weights="pissa_niter_4"), "pissa"),
    "unknown field": (lambda b, a: edit(a, hydra_heads=2), "hydra_heads"),
    "token indices": (lambda b, a: edit(a, trainable_token_indices=[1]), "trainable_token"),
    "rank": (lambda b, a: edit(a, r=5), "rank 5"),
    "alpha": (lambda b, a: edit(a, lora_alpha="big"), "'big'"),
    "pattern": (lambda b, a: edit(a, rank_pattern={"(": 4}), "rank_pattern"),
    "pattern without end": (lambda b, a: edit(a, rank_pattern={"(.+)+!": 4}), "intricate"),
    "no config": (lambda b, a: (a / "adapter_config.json").unlink(), "no adapter"),
    "no folder": (lambda b, a: a.rename(a.parent / "moved"), "no adapter"),
    "pickle": (
        lambda b, a: (a / "adapter_model.safetensors").rename(a / "adapter_model.bin"),
        "save_pretrained",
    ),
    "no weights": (
        lambda b, a: (a / "adapter_model.safetensors").unlink(),
        "no adapter_model.safetensors",
    ),
    "cut": (
        lambda b, a: (a / "adapter_model.safetensors").write_bytes(b"\x10"),
        "damaged",
    ),
    "empty": (lambda b, a: edit_tensors(a, lambda t: t.clear()), "no adapter weights"),
    "one half": (
        lambda b, a: edit_tensors(a, lambda t: t.pop(f"{LAYER}.lora_B.weight")),
        "one half",
    ),
    "DoRA tensors": (
        lambda b, a: edit_tensors(a, lambda t: t.update({f"{LAYER}.lora_magnitude_vector": OTHER})),
        "lora_magnitude_vector",
    ),
    "unknown module": (
        lambda b, a: edit_tensors(a, lambda t: t.update({"base_model.model.score.weight": OTHER})),
        "score.weight",
    ),
    "another size": (
        lambda b, a: edit_tensors(a, lambda t: t.update({f"{LAYER}.lora_A.weight": OTHER})),
        "q_proj.weight of shape [64, 4]",
    ),
    "two sizes": (
        lambda b, a: edit_tensors(a, lambda t: t.update({f"{LAYER}.lora_B.weight": OTHER[:, :3]})),
        "do not fit each other",
    ),
    "NaN": (
        lambda b, a: edit_tensors(a, lambda t: t[f"{LAYER}.lora_B.weight"].fill(np.nan)),
        "NaN",
    ),
}


@pytest.mark.parametrize("case", BREAK)
def test_a_broken_adapter_is_refused(case: str, copies: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapter = copies
    damage, message = BREAK[case]
    damage(base, adapter)
    with pytest.raises(EdgechatError) as caught:
        export_model(open_source(str(base), print, adapter), tmp_path / "out" / "b", "fp32")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_a_table_that_is_embedding_and_head_cannot_be_adapted(module: str, tmp_path: Path) -> None:
    """peft changes one and not the other, depending on how it is merged."""
    write_model(tmp_path / "base", "llama", tie_word_embeddings=True)
    write_adapter(tmp_path / "base", tmp_path / "adapter", target_modules=[module])
    with pytest.raises(EdgechatError, match="one table"):
        export_model(
            open_source(str(tmp_path / "base"), print, tmp_path / "adapter"), tmp_path / "b", "fp32"
        )


def test_an_adapter_given_as_the_model(adapted: tuple[Path, Path]) -> None:
    with pytest.raises(EdgechatError, match="--adapter"):
        open_source(str(adapted[1]), print)
