"""A PEFT LoRA folder, merged into a model's tensors as they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from edgechat.bundle import Adapter, sha256
from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import (
    HEADS,
    MERGE,
    Source,
    TextFiles,
    at_most,
    parse_json,
    read_text,
)
from edgechat.export.sources.hf_text import folder_text, has_tokenizer
from edgechat.export.sources.safetensors_files import SafetensorsFiles
from edgechat.export.spec import Array

PREFIX = "base_model.model."
A, B = (".lora_A.weight", ".lora_embedding_A"), (".lora_B.weight", ".lora_embedding_B")
# Fields of adapter_config.json that change nothing once training is over, or that say where
# adapters were put, which the tensors themselves tell.
HARMLESS = frozenset(
    """task_type auto_mapping peft_version revision inference_mode base_model_name_or_path
    target_modules exclude_modules layers_to_transform layers_pattern modules_to_save bias
    fan_in_fan_out lora_dropout ensure_weight_tying runtime_config megatron_core qalora_group_size
    loftq_config eva_config corda_config lora_ga_config""".split()
)
READ = frozenset(
    "peft_type r lora_alpha use_rslora rank_pattern alpha_pattern init_lora_weights".split()
)
# Other ways to start (PiSSA, OLoRA, LoftQ, …) also change the weights of the base model.
STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


class AdaptedSource:
    """``base`` with the adapter in ``folder`` merged into it (LoRA, arXiv 2106.09685).

    A tensor is merged when it is read, W + scaling * B A in float32, so that memory never holds
    more than one. A tokenizer in the adapter's folder, which trainers put there, takes the place
    of the base's. Raises SourceError and UnsupportedModelError.
    """

    def __init__(self, base: Source, folder: Path) -> None:
        self._base, self._folder = base, folder
        self._config = _read_config(folder)
        weights = folder / "adapter_model.safetensors"
        if not weights.is_file():
            raise SourceError(_without_weights(folder))
        self._stored = SafetensorsFiles([weights])
        self._replaced: dict[str, str] = {}
        self._merged: dict[str, tuple[str, str, float]] = {}
        self._sort()
        self.changed = frozenset(self._replaced.keys() | self._merged.keys())
        self._check_shapes()
        self.kind, self.config = base.kind, base.config
        own = folder.resolve().name
        self.name = f"{base.name}+{own}"
        self.adapter: Adapter | None = Adapter(own, sha256(weights))

    def names(self) -> Collection[str]:
        return self._base.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._base.shape(name)

    def tensor(self, name: str) -> Array:
        replaced = self._replaced.get(name)
        value = self._base.tensor(name) if replaced is None else self._stored.read(replaced)
        if name not in self._merged:
            return value
        first, second, scaling = self._merged[name]
        a, b = self._stored.read(first), self._stored.read(second)
        delta = (b @ a) * np.float32(scaling)
        delta += value if first.endswith(A[0]) else value.T
        return delta if first.endswith(A[0]) else np.ascontiguousarray(delta.T)

    def text(self) -> TextFiles:
        text = self._base.text()
        if not has_tokenizer(self._folder):
            return text
        own = folder_text(self._folder, self.config)
        own.chat_templates = own.chat_templates or text.chat_templates
        return own

    def _sort(self) -> None:
        """Which stored tensors replace one of the base's, and which make a low-rank update."""
        firsts: dict[str, str] = {}
        seconds: dict[str, str] = {}
        for key in self._stored.headers:
            name = key.removeprefix(PREFIX).replace(".base_layer.", ".")
            for suffixes, found in ((A, firsts), (B, seconds)):
                for suffix in suffixes:
                    if name.endswith(suffix):
                        found[name.removesuffix(suffix)] = key
            if not name.endswith((*A, *B)):
                if ".lora_" in name:
                    raise UnsupportedModelError(
                        f"the adapter holds {key}, no LoRA tensor; {MERGE}."
                    )
                self._replaced[name] = key
        alone = firsts.keys() ^ seconds.keys()
        if alone:
            raise SourceError(
                f"{self._folder} lacks one half of the update of {at_most(alone)}; copy the "
                "adapter again."
            )
        if not firsts and not self._replaced:
            raise SourceError(f"{self._folder} holds no adapter weights; copy the adapter again.")
        for module, key in firsts.items():
            a, b = self._stored.shape(key), self._stored.shape(seconds[module])
            if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
                raise SourceError(f"the adapter's tensors of {module} do not fit each other.")
            self._merged[f"{module}.weight"] = (key, seconds[module], self._scaling(module, a[0]))

    def _check_shapes(self) -> None:
        # A head that the model has not is one with the embedding, which check_tensors refuses.
        known = {*self._base.names(), *HEADS}
        unknown = [name for name in self.changed if name not in known]
        if unknown:
            raise SourceError(
                f"the adapter changes what the model does not have ({at_most(unknown)}); it was "
                f"made for another one: {self._made_for()}."
            )
        found: dict[str, tuple[int, ...]] = {}
        found |= {name: self._stored.shape(key) for name, key in self._replaced.items()}
        for name, (first, second, _) in self._merged.items():
            a, b = self._stored.shape(first), self._stored.shape(second)
            shape = (b[0], a[1]) if first.endswith(A[0]) else (a[1], b[0])
            if found.get(name, shape) != shape:
                raise SourceError(f"the adapter's tensors of {name} do not fit each other.")
            found[name] = shape
        for name in found.keys() & self._base.names():
            expected = self._base.shape(name)
            if found[name] != expected:
                raise SourceError(
                    f"the adapter is for {name} of shape {list(found[name])}, the model's is "
                    f"{list(expected)}; it was made for another one: {self._made_for()}."
                )

    def _scaling(self, module: str, rank: int) -> float:
        """alpha / r, or alpha / sqrt(r) (rsLoRA, arXiv 2312.03732), of one module."""
        expected = self._number("r", self._pattern("rank_pattern", module))
        if expected != rank:
            raise SourceError(
                f"{self._folder} says rank {expected:g} for {module}, its tensors have {rank}; "
                "adapter_config.json and weights do not belong together."
            )
        alpha = self._number("lora_alpha", self._pattern("alpha_pattern", module))
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def _number(self, field: str, value: Any) -> float:
        value = self._config.get(field, 8) if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise SourceError(
                f"{self._folder}/adapter_config.json says {field} = {value!r}, no number above 0."
            )
        return float(value)

    def _pattern(self, field: str, module: str) -> Any:
        """The value of the first of a field's patterns that ``module`` ends with, as in peft."""
        patterns = self._config.get(field) or {}
        if not isinstance(patterns, dict):
            raise SourceError(f"{self._folder}/adapter_config.json has no mapping as {field}.")
        for pattern, value in patterns.items():
            if len(re.findall(r"[*+{?]", pattern)) > 3 or re.search(r"\)[*+{]", pattern):
                raise UnsupportedModelError(f"{field} has the intricate key {pattern!r}; {MERGE}.")
            try:
                if re.match(rf"(.*\.)?({pattern})$", module):
                    return value
            except re.error as error:
                raise SourceError(f"{field} has the key {pattern!r} ({error}).") from None
        return None

    def _made_for(self) -> str:
        base = self._config.get("base_model_name_or_path")
        return str(base) if base else "adapter_config.json does not say which"


def _read_config(folder: Path) -> dict[str, Any]:
    """adapter_config.json, refused by name where it asks for more than LoRA."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise SourceError(
            f"{folder} is no adapter (it has no adapter_config.json); give a folder that peft's "
            "save_pretrained made."
        )
    config = parse_json(read_text(path), str(path))
    if config.get("peft_type") != "LORA":
        kind = config.get("peft_type")
        raise UnsupportedModelError(f"the adapter's peft_type is {kind!r}, not LORA; {MERGE}.")
    for field, value in config.items():
        if field not in HARMLESS | READ and value:
            raise UnsupportedModelError(f"the adapter sets {field} = {value!r}; {MERGE}.")
    start = config.get("init_lora_weights")
    if start not in STARTS:
        raise UnsupportedModelError(
            f"the adapter sets init_lora_weights = {start!r}, which changes the base model too; "
            f"{MERGE}."
        )
    return config


def _without_weights(folder: Path) -> str:
    if (folder / "adapter_model.bin").exists():
        return (
            f"{folder} holds only adapter_model.bin (pickle, which can run code); load it with "
            "peft and save it again with save_pretrained, which writes safetensors."
        )
    return f"{folder} has no adapter_model.safetensors; copy the adapter again."
