"""A Hugging Face model folder: config.json, safetensors, tokenizer.json, chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy for safetensors
import numpy as np
from safetensors import SafetensorError, safe_open

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import TextFiles, load_tokenizer, parse_json
from edgechat.export.spec import Array

FLOATS = {"F32", "F16", "BF16"}


class HFFolder:
    """Reads tensors straight from (sharded) safetensors files, one at a time."""

    kind = "huggingface"

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.name = name or folder.resolve().name
        self._folder = folder
        self.config = self._json("config.json", required=True)
        if self.config.get("quantization_config"):
            settings = self.config["quantization_config"]
            method = settings.get("quant_method") if isinstance(settings, dict) else settings
            raise UnsupportedModelError(
                f"this checkpoint is already quantised ({method}); export the original one."
            )
        self._files = self._shards()

    def tensor(self, name: str) -> Array:
        path = self._files.get(name)
        if path is None:
            raise SourceError(f"tensor {name} is missing from {self._folder}; download it again.")
        try:
            with safe_open(path, framework="numpy") as file:
                view = file.get_slice(name)
                if view.get_dtype() not in FLOATS:
                    raise UnsupportedModelError(
                        f"tensor {name} has type {view.get_dtype()}; edgechat exports float "
                        "checkpoints (F32, F16, BF16)."
                    )
                return np.asarray(file.get_tensor(name)).astype(np.float32)
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{path.name} is damaged ({error}); download it again.") from None

    def text(self) -> TextFiles:
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            raise SourceError(
                f"{self._folder} has no tokenizer.json; load the tokenizer with transformers' "
                "AutoTokenizer and save it there with save_pretrained."
            )
        text = self._read(path)
        tokenizer = load_tokenizer(text, str(path))
        config = self._json("tokenizer_config.json")
        special = {
            key: value if isinstance(value, str) else value["content"]
            for key, value in config.items()
            if key.endswith("_token") and (isinstance(value, str) or _has_content(value))
        }
        bos = special.get("bos_token")
        bos_id = tokenizer.token_to_id(bos) if bos else None
        if bos_id is None:
            bos_id = self.config.get("bos_token_id")
        first = tokenizer.encode("a").ids[:1]
        adds_bos = bos_id is not None and (first == [bos_id] or bool(config.get("add_bos_token")))
        return TextFiles(
            tokenizer_json=text,
            chat_template=self._template(config),
            bos_id=bos_id,
            eos_ids=self._eos_ids(special, tokenizer.token_to_id),
            adds_bos=adds_bos,
            special=special,
        )

    def _eos_ids(self, special: dict[str, str], to_id: Any) -> list[int]:
        ids: list[Any] = []
        for values in (self.config, self._json("generation_config.json")):
            value = values.get("eos_token_id")
            ids += value if isinstance(value, list) else [] if value is None else [value]
        if "eos_token" in special:
            found = to_id(special["eos_token"])
            ids += [] if found is None else [found]
        if not all(type(i) is int for i in ids):
            raise SourceError(f"eos_token_id must be whole numbers, the configs say {ids}.")
        return sorted(set(ids))

    def _template(self, tokenizer_config: dict[str, Any]) -> str | None:
        """The chat template from any of the places Hugging Face keeps it, newest first."""
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return self._read(path)
        for value in (
            self._json("chat_template.json").get("chat_template"),
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

    def _shards(self) -> dict[str, Path]:
        """Tensor name to the file that holds it."""
        index = self._folder / "model.safetensors.index.json"
        single = self._folder / "model.safetensors"
        if index.is_file():
            mapping = parse_json(self._read(index), str(index)).get("weight_map")
            if not isinstance(mapping, dict):
                raise SourceError(f"{index} has no weight_map; download it again.")
            files = {name: self._inside(str(file)) for name, file in mapping.items()}
        elif single.is_file():
            files = dict.fromkeys(self._names(single), single)
        elif (self._folder / "pytorch_model.bin").exists():
            raise SourceError(
                f"{self._folder} holds only pytorch_model.bin (pickle, which can run code); "
                "save the model as safetensors with transformers' save_pretrained."
            )
        else:
            raise SourceError(f"{self._folder} has no model.safetensors; download it again.")
        for path in set(files.values()):
            if not path.is_file():
                raise SourceError(f"{path} is missing; download the model again.")
        return files

    def _names(self, path: Path) -> list[str]:
        try:
            with safe_open(path, framework="numpy") as file:
                return list(file.keys())
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{path} is damaged ({error}); download it again.") from None

    def _inside(self, name: str) -> Path:
        if Path(name).name != name:
            raise SourceError(f"the shard name {name!r} points outside the model folder.")
        return self._folder / name

    def _json(self, name: str, required: bool = False) -> dict[str, Any]:
        path = self._folder / name
        if not path.is_file():
            if required:
                raise SourceError(f"{self._folder} has no {name}; is it a Hugging Face model?")
            return {}
        return parse_json(self._read(path), str(path))

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{path} cannot be read ({error}).") from None


def _has_content(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "template"} <= value.keys()
