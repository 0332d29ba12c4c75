"""Chat templates and special tokens are found wherever models keep them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import MODELS, write_model

from edgechat.errors import SourceError
from edgechat.export import export_model, open_source
from edgechat.export.architectures import find_architecture
from edgechat.export.sources.base import read_checked


def set_tokenizer_config(folder: Path, **values: object) -> None:
    path = folder / "tokenizer_config.json"
    data = json.loads(path.read_text())
    data.pop("chat_template", None)
    path.write_text(json.dumps(data | values))


def test_template_places(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()

    def found() -> dict[str, str]:
        return open_source(str(folder), print).text().chat_templates

    set_tokenizer_config(folder)
    assert found() == {}
    set_tokenizer_config(folder, chat_template="in config")
    assert found() == {"default": "in config"}
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    set_tokenizer_config(folder, chat_template=named)
    assert found() == {"default": "named", "tool_use": "tools"}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert found() == {"default": "json"}
    (folder / "chat_template.jinja").write_text("jinja")
    assert found() == {"default": "jinja"}
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("documents")
    assert found() == {"default": "jinja", "rag": "documents"}
    set_tokenizer_config(folder, chat_template=[{"name": "default", "template": 1}])
    (folder / "chat_template.jinja").unlink()
    (folder / "additional_chat_templates" / "rag.jinja").unlink()
    (folder / "chat_template.json").unlink()
    with pytest.raises(SourceError, match="no text"):
        found()


def test_end_tokens_are_the_union_of_all_places(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7]}))
    assert open_source(str(folder), print).text().eos_ids == [2, 5, 6, 7]


def test_tables_that_old_checkpoints_store_are_let_pass(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """As transformers does; and a head that equals the embedding it is tied to."""
    folder = make_folder(tie_word_embeddings=True)
    plain = export_model(open_source(str(folder), print), tmp_path / "a", "fp32")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    for layer in range(3):
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        tensors[name] = np.ones(8, dtype=np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    bundle = export_model(open_source(str(folder), print), tmp_path / "b", "fp32")
    assert bundle.manifest.files == plain.manifest.files


@pytest.mark.parametrize("name", MODELS)
def test_the_tensors_that_are_read_are_told_before(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, name)
    source = open_source(str(tmp_path), print)
    architecture = find_architecture(source.config)
    spec, read = architecture.spec(source.config, None), set()

    def reader(name: str, shape: tuple[int, ...]) -> Any:
        read.add((name, shape))
        return read_checked(source, name, shape)

    weights = architecture.weights(spec, reader, source.config)
    tables = [weights.embedding(), weights.final_norm()]
    tables += [] if spec.tied_embeddings else [weights.head().weight]
    for index in range(spec.num_layers):
        weights.layer(index)
    assert read == set(weights.shapes.items())
    assert {name: source.shape(name) for name in source.names()} == weights.shapes
