"""A Hugging Face model folder: config.json, safetensors, tokenizer.json, chat template."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from edgechat.bundle import Adapter
from edgechat.errors import SourceError
from edgechat.export.sources.base import (
    TextFiles,
    at_most,
    is_harmless,
    parse_json,
    read_json,
    read_text,
)
from edgechat.export.sources.hf_text import folder_text
from edgechat.export.sources.quantised import FP8Tensors, is_fp8, refuse_packed
from edgechat.export.sources.safetensors_files import SafetensorsFiles
from edgechat.export.spec import Array

INDEX = "model.safetensors.index.json"


class HFFolder:
    """Reads tensors straight from (sharded) safetensors files, one at a time."""

    adapter: Adapter | None = None
    changed: frozenset[str] = frozenset()

    def __init__(self, folder: Path, name: str | None = None, kind: str = "huggingface") -> None:
        self.kind, self.name = kind, name or folder.resolve().name
        self.folder = folder
        if not (folder / "config.json").is_file():
            raise SourceError(_no_model(folder))
        self.config = read_json(folder / "config.json")
        settings = self.config.pop("quantization_config", None)
        fp8 = bool(settings) and is_fp8(settings if isinstance(settings, dict) else {})
        stored = self._open()
        self._tensors: SafetensorsFiles | FP8Tensors = stored
        if fp8:
            self.kind += ", FP8 weights"
            self._tensors = FP8Tensors(stored, settings.get("weight_block_size"))
        else:
            refuse_packed(stored.names())

    def names(self) -> Collection[str]:
        return self._tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def tensor(self, name: str) -> Array:
        return self._tensors.read(name)

    def text(self) -> TextFiles:
        return folder_text(self.folder, self.config)

    def _open(self) -> SafetensorsFiles:
        """One file or, where there is none, those of the index; in transformers' order."""
        single, index = self.folder / "model.safetensors", self.folder / INDEX
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
        if any(self.folder.glob("pytorch_model*.bin")):
            return (
                f"{self.folder} holds only pytorch_model.bin (pickle, which can run code); "
                "save the model as safetensors with transformers' save_pretrained."
            )
        return (
            f"{self.folder} has no model.safetensors, nor an index of several; download them, or "
            "load the model with transformers and save it with save_pretrained."
        )

    def _inside(self, name: str) -> Path:
        if Path(name).name != name:
            raise SourceError(f"the shard name {name!r} points outside the model folder.")
        return self.folder / name


def _no_model(folder: Path) -> str:
    """Why a folder without config.json cannot be exported."""
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = read_json(adapter).get("base_model_name_or_path")
        return (
            f"{folder} is an adapter; export the model it was made for ({base}) with --adapter "
            f"{folder}."
        )
    return f"{folder} has no config.json; is it a Hugging Face model?"
