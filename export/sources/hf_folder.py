"""A Hugging Face model folder: config.json, safetensors, tokenizer.json, chat template."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edgechat.bundle import Adapter
from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import (
    TextFiles,
    at_most,
    is_harmless,
    load_tokenizer,
    parse_json,
    read_text,
)
from edgechat.export.sources.safetensors_files import SafetensorsFiles
from edgechat.export.spec import Array

INDEX = "model.safetensors.index.json"


class HFFolder:
    """Reads tensors straight from (sharded) safetensors files, one at a time."""

    kind = "huggingface"
    adapter: Adapter | None = None
    changed: frozenset[str] = frozenset()

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.name = name or folder.resolve().name
        self._folder = folder
        if not (folder / "config.json").is_file():
            raise SourceError(_no_model(folder))
        self.config = _json(folder / "config.json")
        if self.config.get("quantization_config"):
            settings = self.config["quantization_config"]
            method = settings.get("quant_method") if isinstance(settings, dict) else settings
            raise UnsupportedModelError(
                f"this checkpoint is already quantised ({method}); export the original one."
            )
        self._tensors = self._open()

    def names(self) -> Collection[str]:
        return self._tensors.headers.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def tensor(self, name: str) -> Array:
        return self._tensors.read(name)

    def text(self) -> TextFiles:
        return folder_text(self._folder, self.config)

    def _open(self) -> SafetensorsFiles:
        """One file or, where there is none, those of the index; in transformers' order."""
        single, index = self._folder / "model.safetensors", self._folder / INDEX
        if single.is_file():
            return SafetensorsFiles([single])
        if not index.is_file():
            raise SourceError(self._without_weights())
        mapping = parse_json(read_text(index), str(index)).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise SourceError(f"{index} has no weight_map; download it again.")
        shards = SafetensorsFiles(
            [self._inside(f) for f in sorted(set(map(str, mapping.values())))]
        )
        stored = {name: header.file.name for name, header in shards.headers.items()}
        wrong = [name for name, file in mapping.items() if stored.get(name) != file]
        if wrong:
            raise SourceError(
                f"{index} names tensors that are not where it says ({at_most(wrong)}); download "
                "the model again."
            )
        unlisted = [n for n in stored if n not in mapping and not is_harmless(n)]
        if unlisted:
            raise SourceError(
                f"{index} does not name {at_most(unlisted)}, which its files hold; download the "
                "model again."
            )
        return shards

    def _without_weights(self) -> str:
        """Why there is nothing to read, and the remedy."""
        if any(self._folder.glob("pytorch_model*.bin")):
            return (
                f"{self._folder} holds only pytorch_model.bin (pickle, which can run code); "
                "save the model as safetensors with transformers' save_pretrained."
            )
        return f"{self._folder} has no model.safetensors; download it again."

    def _inside(self, name: str) -> Path:
        if Path(name).name != name:
            raise SourceError(f"the shard name {name!r} points outside the model folder.")
        return self._folder / name


def _no_model(folder: Path) -> str:
    """Why a folder without config.json cannot be exported."""
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = _json(adapter).get("base_model_name_or_path")
        return (
            f"{folder} is an adapter; export the model it was made for ({base}) with --adapter "
            f"{folder}."
        )
    return f"{folder} has no config.json; is it a Hugging Face model?"


def folder_text(folder: Path, config: dict[str, Any]) -> TextFiles:
    """Tokenizer and chat format in ``folder`` of a model with ``config``."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise SourceError(
            f"{folder} has no tokenizer.json; load the tokenizer with transformers' "
            "AutoTokenizer and save it there with save_pretrained."
        )
    text = read_text(path)
    tokenizer = load_tokenizer(text, str(path))
    settings = _json(folder / "tokenizer_config.json")
    special = {
        key: value if isinstance(value, str) else value["content"]
        for key, value in settings.items()
        if key.endswith("_token") and (isinstance(value, str) or _has_content(value))
    }
    bos = special.get("bos_token")
    bos_id = tokenizer.token_to_id(bos) if bos else None
    if bos_id is None:
        bos_id = config.get("bos_token_id")
    first = tokenizer.encode("a").ids[:1]
    adds_bos = bos_id is not None and (first == [bos_id] or bool(settings.get("add_bos_token")))
    named = [config, _json(folder / "generation_config.json")]
    return TextFiles(
        tokenizer_json=text,
        chat_template=_template(folder, settings),
        bos_id=bos_id,
        eos_ids=_eos_ids(named, special.get("eos_token"), tokenizer),
        adds_bos=adds_bos,
        special=special,
    )


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


def _template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The chat template from any of the places Hugging Face keeps it, newest first."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    for value in (
        _json(folder / "chat_template.json").get("chat_template"),
        tokenizer_config.get("chat_template"),
    ):
        if isinstance(value, str):
            return value
        if isinstance(value, list):  # named templates
            named = {str(t["name"]): t["template"] for t in value if _is_named(t)}
            if "default" in named:
                return str(named["default"])
            raise SourceError(
                f"the model has several chat templates ({', '.join(named)}) and none is "
                "called 'default'; put the one to use in chat_template.jinja."
            )
    return None


def _json(path: Path) -> dict[str, Any]:
    """A file's JSON object, empty where there is no file."""
    return parse_json(read_text(path), str(path)) if path.is_file() else {}


def _has_content(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "template"} <= value.keys()
