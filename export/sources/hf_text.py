"""Tokenizer, special tokens and chat template of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from edgechat.errors import SourceError
from edgechat.export.sources.base import (
    TextFiles,
    load_tokenizer,
    read_bytes,
    read_json,
    read_text,
)
from edgechat.export.sources.sentencepiece_file import REMEDY, read_pieces

JSON, SENTENCEPIECE = "tokenizer.json", "tokenizer.model"
Settings = dict[str, Any]


def has_tokenizer(folder: Path) -> bool:
    """Whether ``folder`` holds a tokenizer of its own."""
    return (folder / JSON).is_file() or (folder / SENTENCEPIECE).is_file()


def folder_text(folder: Path, config: Settings) -> TextFiles:
    """Tokenizer and chat format in ``folder`` of a model with ``config``."""
    settings = read_json(folder / "tokenizer_config.json")
    named = read_json(folder / "special_tokens_map.json") | settings
    special = {
        key: value if isinstance(value, str) else value["content"]
        for key, value in named.items()
        if key.endswith("_token") and (isinstance(value, str) or _has_content(value))
    }
    adds = settings.get("add_bos_token")
    if (folder / JSON).is_file():
        text = read_text(folder / JSON)
        tokenizer = load_tokenizer(text, str(folder / JSON))
    elif (folder / SENTENCEPIECE).is_file():
        tokenizer = _converted(folder, settings, special)
        text = tokenizer.to_str()
        adds = adds is not False and "bos_token" in special
    else:
        raise SourceError(f"{folder} has no {JSON} and no {SENTENCEPIECE}; {REMEDY}.")
    bos = special.get("bos_token")
    bos_id = tokenizer.token_to_id(bos) if bos else None
    if bos_id is None:
        bos_id = config.get("bos_token_id")
    first = tokenizer.encode("a").ids[:1]
    configs = [config, read_json(folder / "generation_config.json")]
    return TextFiles(
        tokenizer_json=text,
        chat_templates=_templates(folder, settings),
        bos_id=bos_id,
        eos_ids=_eos_ids(configs, special.get("eos_token"), tokenizer),
        adds_bos=bos_id is not None and (first == [bos_id] or bool(adds)),
        special=special,
    )


def _converted(folder: Path, settings: Settings, special: dict[str, str]) -> Tokenizer:
    """The tokenizer of a folder with a SentencePiece model only; its begin and end token join
    ``special`` if no file names them."""
    path = folder / SENTENCEPIECE
    pieces, bos, eos = read_pieces(read_bytes(path), str(path))
    added = _added_tokens(folder, settings)
    for index, token in added.items():
        if index < len(pieces.tokens):  # some models give placeholders a name there
            pieces.tokens[index] = token.content
    for name, known in (("bos_token", bos), ("eos_token", eos)):
        if known is not None:
            special.setdefault(name, pieces.tokens[known])
    prefix = settings.get("add_prefix_space")
    if prefix is False or (prefix is None and pieces.prefix == "none"):
        pieces.prefix = "none"
    else:  # transformers' "legacy" puts a space behind added tokens too
        pieces.prefix = "first" if settings.get("legacy") is False else "every"
    tokenizer = pieces.tokenizer()
    tokenizer.add_tokens([added[index] for index in sorted(added)])
    for index, token in added.items():
        if tokenizer.token_to_id(token.content) != index:
            raise SourceError(
                f"{folder} gives its added token {token.content!r} the id {index:,}, which is not "
                f"the next one behind the {len(pieces.tokens):,} of {SENTENCEPIECE}; {REMEDY}."
            )
    named = set(special.values()) - {token.content for token in added.values()}
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token in sorted(named)
            if tokenizer.token_to_id(token) is not None
        ]
    )
    return tokenizer


def _added_tokens(folder: Path, settings: Settings) -> dict[int, AddedToken]:
    """Tokens by id that transformers adds to a SentencePiece model."""
    added = {}
    for content, index in read_json(folder / "added_tokens.json").items():
        added[_index(index, folder)] = AddedToken(content, normalized=False)
    listed = settings.get("added_tokens_decoder")
    for key, value in (listed if isinstance(listed, dict) else {}).items():
        if not _has_content(value):
            raise SourceError(f"{folder} has an added token {key!r} without content.")
        flags = {name: bool(value.get(name)) for name in ("lstrip", "rstrip", "single_word")}
        added[_index(key, folder)] = AddedToken(
            value["content"], normalized=False, special=bool(value.get("special")), **flags
        )
    return added


def _index(value: Any, folder: Path) -> int:
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    raise SourceError(f"{folder} has an added token with the id {value!r}, which is no number.")


def _eos_ids(configs: list[dict[str, Any]], token: str | None, tokenizer: Tokenizer) -> list[int]:
    ids: list[Any] = []
    for values in configs:
        value = values.get("eos_token_id")
        ids += value if isinstance(value, list) else [] if value is None else [value]
    if token is not None:
        found = tokenizer.token_to_id(token)
        ids += [] if found is None else [found]
    if not all(type(i) is int for i in ids):
        raise SourceError(f"eos_token_id must be whole numbers, the configs say {ids}.")
    return sorted(set(ids))


def _templates(folder: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name, from the newest of the places where Hugging Face keeps them."""
    single, more = folder / "chat_template.jinja", folder / "additional_chat_templates"
    found: dict[str, Any] = {path.stem: read_text(path) for path in sorted(more.glob("*.jinja"))}
    if single.is_file():
        found["default"] = read_text(single)
    stored = (read_json(folder / "chat_template.json"), tokenizer_config)
    for value in (settings.get("chat_template") for settings in stored):
        if not found and isinstance(value, str):
            found["default"] = value
        elif not found and isinstance(value, list):
            found = {str(t["name"]): t["template"] for t in value if _is_named(t)}
    if not all(isinstance(template, str) for template in found.values()):
        raise SourceError(f"{folder} has chat templates that are no text; download it again.")
    return found


def _has_content(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "template"} <= value.keys()
