"""Chat templates and special tokens are found wherever models keep them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edgechat.errors import SourceError
from edgechat.export import open_source


def set_tokenizer_config(folder: Path, **values: object) -> None:
    path = folder / "tokenizer_config.json"
    data = json.loads(path.read_text())
    data.pop("chat_template", None)
    path.write_text(json.dumps(data | values))


def test_template_places(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()

    def found() -> str | None:
        return open_source(str(folder), print).text().chat_template

    set_tokenizer_config(folder)
    assert found() is None
    set_tokenizer_config(folder, chat_template="in config")
    assert found() == "in config"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "named"}]
    set_tokenizer_config(folder, chat_template=named)
    assert found() == "named"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert found() == "json"
    (folder / "chat_template.jinja").write_text("jinja")
    assert found() == "jinja"


def test_named_templates_without_a_default(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    set_tokenizer_config(folder, chat_template=[{"name": "rag", "template": "x"}])
    with pytest.raises(SourceError, match="rag"):
        open_source(str(folder), print).text()


def test_end_tokens_are_the_union_of_all_places(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7]}))
    assert open_source(str(folder), print).text().eos_ids == [2, 5, 6, 7]
