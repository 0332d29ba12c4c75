"""BOS stands in front exactly once, whoever adds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edgechat.bundle import load_bundle
from edgechat.export import export_model, open_source
from edgechat.runtime.text import TextCodec, Turn

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "tokenizer_adds", "count"),
    [
        ("{{ bos_token }}" + PLAIN, False, 1),
        (PLAIN, True, 1),
        ("{{ bos_token }}" + PLAIN, True, 1),
        (PLAIN, False, 0),  # transformers feeds none either
    ],
)
def test_bos(
    template: str,
    tokenizer_adds: bool,
    count: int,
    make_folder: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = make_folder()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"bos_token": "<|endoftext|>", "chat_template": template}
    config["add_bos_token"] = tokenizer_adds
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    bundle = export_model(open_source(str(folder), print), tmp_path / "b", "fp32").folder
    ids = TextCodec(load_bundle(bundle)).prompt([Turn("user", "hi")]).ids.tolist()
    assert ids.count(0) == count
    assert ids[:count] == [0] * count
