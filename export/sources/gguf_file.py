"""A .gguf file: tensors dequantised, names and layout brought back to Hugging Face's."""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edgechat.bundle import Adapter
from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import TextFiles
from edgechat.export.sources.gguf_families import FAMILIES, GEMMA_27B_LAYERS, Family
from edgechat.export.sources.gguf_tokenizer import text_files
from edgechat.export.spec import Array

KNOWN = frozenset(
    """block_count context_length embedding_length feed_forward_length vocab_size
    attention.head_count attention.head_count_kv attention.key_length attention.value_length
    rope.dimension_count rope.freq_base rope.scaling.type rope.scaling.factor
    rope.scaling.original_context_length rope.scaling.finetuned rope.scaling.attn_factor""".split()
)
# What a file may give as one number or as a list with one for each layer.
PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
PATTERN = "attention.sliding_window_pattern"  # every n-th layer sees all, or a flag a layer
ROPE_FACTORS = "rope_freqs.weight"
FALCON_SECOND_NORM = "blk.0.attn_norm_2.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


class GGUFFile:
    """Metadata as a config, tensors by Hugging Face name; the file stays memory-mapped."""

    kind = "gguf"
    adapter: Adapter | None = None
    changed: frozenset[str] = frozenset()

    def __init__(self, path: Path, name: str | None = None) -> None:
        if not path.is_file():
            raise SourceError(f"{path} is not a regular file.")
        try:
            self._reader = gguf.GGUFReader(path)
        except Exception as error:  # the reader raises many kinds on a damaged file
            raise SourceError(f"{path} is not a readable GGUF file ({error}).") from None
        self._path = path
        self._tensors = {t.name: t for t in self._reader.tensors}
        self._meta = self._metadata()
        self._refuse_parts()
        self.name = name or str(self._meta.get("general.name") or path.stem)
        self._family = self._find_family()
        self.config = self._config()
        self._gguf_names = self._name_map()

    def names(self) -> Collection[str]:
        return self._gguf_names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        tensor = self._tensors[self._gguf_names[name]]
        kind = tensor.tensor_type
        block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
        try:  # a block of nothing tells whether this kind can be dequantised
            gguf.quants.dequantize(np.zeros(block_bytes, np.uint8), kind)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModelError(
                f"tensor {tensor.name} has type {kind.name}, which the gguf package cannot "
                f"dequantise ({error})."
            ) from None
        return tuple(int(size) for size in reversed(tensor.shape))

    def tensor(self, name: str) -> Array:
        stored = self._gguf_names[name]
        tensor = self._tensors[stored]
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        value = np.require(value, np.float32, ["C", "W"])  # not the file's own pages
        self._release()
        kind = stored.split(".")[-2]
        if kind.endswith("norm"):
            return value - np.float32(self._family.norm_offset)
        if kind == "attn_qkv" and self._family.ungrouped:
            return self._grouped(value)
        heads = {
            "attn_q": self.config["num_attention_heads"],
            "attn_k": self.config["num_key_value_heads"],
        }.get(kind)
        if not self._family.interleaved or heads is None or value.shape[0] % (2 * heads):
            return value  # a size that cannot be right is refused by the reader of the tensor
        return _unpermute(value, heads)

    def _release(self) -> None:
        """Give back the pages of the mapped file, which count as the process's memory."""
        mapping = self._reader.data.base
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

    def text(self) -> TextFiles:
        return text_files(self._meta)

    def _metadata(self) -> dict[str, Any]:
        try:
            return {key: field.contents() for key, field in self._reader.fields.items()}
        except Exception as error:
            raise SourceError(f"{self._path} has damaged metadata ({error}).") from None

    def _refuse_parts(self) -> None:
        count = self._meta.get("split.count")
        if isinstance(count, int) and count > 1:
            raise UnsupportedModelError(
                f"{self._path} is one of {count} parts of a model; join them with llama.cpp's "
                "llama-gguf-split --merge and give the whole."
            )

    def _find_family(self) -> Family:
        architecture = self._meta.get("general.architecture")
        family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
        if family is None:
            raise UnsupportedModelError(
                f"GGUF architecture {architecture!r} is not supported yet; edgechat reads "
                f"{', '.join(FAMILIES)}."
            )
        return family

    def _config(self) -> dict[str, Any]:
        """The fields of config.json, from the file's metadata."""
        family, prefix = self._family, f"{self._meta['general.architecture']}."
        meta = {
            key.removeprefix(prefix): value
            for key, value in self._meta.items()
            if key.startswith(prefix)
        }
        for key in PER_LAYER:
            if isinstance(value := meta.get(key), list):
                if len(set(value)) != 1:
                    raise UnsupportedModelError(
                        f"the GGUF file sets {prefix}{key} = {value}, but only models whose layers "
                        "are all of one size are supported."
                    )
                meta[key] = value[0]
        known = KNOWN | family.fields.keys() | family.ignored
        known |= {PATTERN} if "attention.sliding_window" in family.fields else set()
        for key, value in meta.items():
            if key not in known and value not in (None, 0, False, ""):
                raise UnsupportedModelError(
                    f"the GGUF file sets {prefix}{key} = {value!r}, which is not supported; "
                    "refusing rather than exporting a model that answers differently."
                )
        heads = meta.get("attention.head_count")
        hidden = meta.get("embedding_length")
        if not isinstance(heads, int) or not isinstance(hidden, int) or heads <= 0:
            raise SourceError(
                f"{self._path} lacks attention.head_count or embedding_length as one number."
            )
        head_dim = meta.get("attention.key_length", hidden // heads)
        if meta.get("attention.value_length", head_dim) != head_dim:
            raise UnsupportedModelError("values of another size than keys are not supported.")
        rotated = meta.get("rope.dimension_count", head_dim)
        if not all(isinstance(size, int) and size > 0 for size in (head_dim, rotated)):
            raise SourceError(f"{self._path} gives sizes of a head that are no whole numbers.")
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2 or embedding.shape[0] != hidden:
            raise SourceError(
                f"{self._path} has no token_embd.weight of width {hidden}; download it again."
            )
        config = {
            "model_type": family.model_type,
            "hidden_size": hidden,
            "intermediate_size": meta.get("feed_forward_length"),
            "num_hidden_layers": meta.get("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": meta.get("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": meta.get("context_length"),
            "rope_theta": meta.get("rope.freq_base", 10000.0),
            "rope_scaling": self._rope_scaling(meta),
            "partial_rotary_factor": rotated / head_dim,
            "vocab_size": int(embedding.shape[1]),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            **family.fixed,
            **{
                # 0 means off, which an absent field does not: families have defaults
                name: None if meta[key] == 0 and meta[key] is not False else _decimal(meta[key])
                for key, name in family.fields.items()
                if key in meta
            },
        }
        pattern = meta.get(PATTERN)
        if isinstance(pattern, list):
            kinds = ("full_attention", "sliding_attention")
            config["layer_types"] = [kinds[bool(slides)] for slides in pattern]
        elif pattern is not None:
            config["sliding_window_pattern"] = pattern
        return {**config, **self._implied(config)}

    def _implied(self, config: dict[str, Any]) -> dict[str, Any]:
        """What a file of this architecture says by the tensors it has, or does not say at all."""
        biases = {
            "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_down.bias" in self._tensors,
        }
        packed_bias = "blk.0.attn_qkv.bias" in self._tensors
        model_type = config["model_type"]
        if model_type == "qwen2":  # always has them
            return {"mlp_bias": biases["mlp_bias"]}
        if model_type == "stablelm":
            return {"use_qkv_bias": biases["attention_bias"], "mlp_bias": biases["mlp_bias"]}
        if model_type == "gpt_neox":
            return {"attention_bias": packed_bias}
        if model_type == "gemma3_text" and not config.get("sliding_window"):
            raise UnsupportedModelError(
                "the GGUF file gives no attention.sliding_window, without which llama.cpp rotates "
                "Gemma 3's layers by another base than the model's; convert the model again."
            )
        if model_type in ("gemma2", "gemma3_text"):
            large = config["num_hidden_layers"] in GEMMA_27B_LAYERS
            width = config["hidden_size"] // config["num_attention_heads"]
            return {"query_pre_attn_scalar": width if large else config["head_dim"], **biases}
        if model_type == "phi3" and config["rope_scaling"]:
            original = config["rope_scaling"].get("original_max_position_embeddings")
            return {"original_max_position_embeddings": original, **biases}
        if model_type == "falcon":
            return {
                "num_kv_heads": config["num_key_value_heads"],
                "ffn_hidden_size": config["intermediate_size"],
                "new_decoder_architecture": True,
                "num_ln_in_parallel_attn": 2 if FALCON_SECOND_NORM in self._tensors else 1,
                "bias": packed_bias,
            }
        return biases

    def _grouped(self, value: Array) -> Array:
        """Rows sorted into queries, keys and values, brought back to KV head by KV head."""
        kv, size = self.config["num_key_value_heads"], self.config["head_dim"]
        heads = self.config["num_attention_heads"]
        if value.shape[0] != (heads + 2 * kv) * size or heads % kv:
            return value
        parts = np.split(value, [heads * size, (heads + kv) * size])
        groups = [part.reshape(kv, -1, *value.shape[1:]) for part in parts]
        return np.concatenate(groups, axis=1).reshape(value.shape)

    def _rope_scaling(self, meta: dict[str, Any]) -> dict[str, Any] | None:
        factor = meta.get("rope.scaling.factor") or 1.0
        kind = meta.get("rope.scaling.type") or ("none" if factor == 1 else "linear")
        original = meta.get("rope.scaling.original_context_length")
        attention = meta.get("rope.scaling.attn_factor")
        if ROPE_FACTORS in self._tensors:
            if kind != "none":
                raise UnsupportedModelError(
                    f"the GGUF file sets rope.scaling.type {kind!r} and {ROPE_FACTORS}; only one "
                    "of them is supported."
                )
            factors = np.asarray(self._tensors[ROPE_FACTORS].data, dtype=np.float64)
            return {"rope_type": "per_frequency", "factors": factors.ravel().tolist()}
        if LONG_FACTORS in self._tensors and SHORT_FACTORS in self._tensors:
            return {
                "rope_type": "longrope",
                "long_factor": self._tensors[LONG_FACTORS].data.tolist(),
                "short_factor": self._tensors[SHORT_FACTORS].data.tolist(),
                "original_max_position_embeddings": original,
                "attention_factor": attention,
            }
        if attention not in (None, 0, 1):  # what it is a factor of depends on llama.cpp's version
            raise UnsupportedModelError(
                f"the GGUF file sets rope.scaling.attn_factor = {attention} with scaling of type "
                f"{kind!r}, which is not supported; export from the model's folder."
            )
        if kind == "none":
            return None
        return {
            "rope_type": kind,
            "factor": factor,
            "original_max_position_embeddings": original,
        }

    def _name_map(self) -> dict[str, str]:
        names = {}
        family, layer = self._family, dict(self._family.layer)
        if FALCON_SECOND_NORM in self._tensors:
            layer |= {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}
        for stored in self._tensors:
            if stored in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS):
                continue
            base, _, kind = stored.rpartition(".")
            hf = family.whole.get(base)
            match = re.fullmatch(r"blk\.(\d+)\.(\w+)", base)
            if match and match[2] in layer:
                hf = f"{family.layers}.{match[1]}.{layer[match[2]]}"
            if hf is None or kind not in ("weight", "bias"):
                raise UnsupportedModelError(
                    f"{self._path} holds tensor {stored}, which a {family.model_type} decoder "
                    "does not have."
                )
            names[f"{hf}.{kind}"] = stored
        return names


def _decimal(value: Any) -> Any:
    """A float32 as the shortest decimal that stands for it: configs say 1e-5, not 9.99…e-6."""
    if isinstance(value, float):
        return float(np.format_float_positional(np.float32(value)))
    return value


def _unpermute(value: Array, heads: int) -> Array:
    """Undo llama.cpp's interleaving of Q/K rows: pairs (i, i + D/2) stood next to each other."""
    rows = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(value.shape)
