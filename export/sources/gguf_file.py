"""A .gguf file: tensors dequantised, names and layout brought back to Hugging Face's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import TextFiles
from edgechat.export.sources.gguf_tokenizer import text_files
from edgechat.export.spec import Array

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
KNOWN = frozenset(
    """block_count context_length embedding_length feed_forward_length vocab_size
    attention.head_count attention.head_count_kv attention.key_length attention.value_length
    attention.layer_norm_rms_epsilon rope.dimension_count rope.freq_base rope.scaling.type
    rope.scaling.factor rope.scaling.original_context_length rope.scaling.finetuned""".split()
)
ROPE_FACTORS = "rope_freqs.weight"


class GGUFFile:
    """Metadata as a config, tensors by Hugging Face name; the file stays memory-mapped."""

    kind = "gguf"

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
        self.name = name or str(self._meta.get("general.name") or path.stem)
        self.config = self._config()
        self._gguf_names = self._name_map()

    def tensor(self, name: str) -> Array:
        stored = self._gguf_names.get(name)
        if stored is None:
            raise SourceError(f"tensor {name} is missing from {self._path}; download it again.")
        tensor = self._tensors[stored]
        try:
            value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModelError(
                f"tensor {stored} has type {tensor.tensor_type.name}, which the gguf package "
                f"cannot dequantise ({error})."
            ) from None
        value = np.ascontiguousarray(value, dtype=np.float32)
        heads = {
            "attn_q": self.config["num_attention_heads"],
            "attn_k": self.config["num_key_value_heads"],
        }.get(stored.split(".")[-2])
        if heads is None or value.shape[0] % (2 * heads):
            return value  # a size that cannot be right is refused by the reader of the tensor
        return _unpermute(value, heads)

    def text(self) -> TextFiles:
        return text_files(self._meta)

    def _metadata(self) -> dict[str, Any]:
        try:
            return {key: field.contents() for key, field in self._reader.fields.items()}
        except Exception as error:
            raise SourceError(f"{self._path} has damaged metadata ({error}).") from None

    def _config(self) -> dict[str, Any]:
        """The fields of config.json, from the file's metadata."""
        architecture = self._meta.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedModelError(
                f"GGUF architecture {architecture!r} is not supported yet; edgechat reads llama."
            )
        meta = {
            key.removeprefix("llama."): value
            for key, value in self._meta.items()
            if key.startswith("llama.")
        }
        for key, value in meta.items():
            if key not in KNOWN and value not in (None, 0, False, ""):
                raise UnsupportedModelError(
                    f"the GGUF file sets llama.{key} = {value!r}, which is not supported; refusing "
                    "rather than exporting a model that answers differently."
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
        if meta.get("rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedModelError("rotary on a part of each head is not supported yet.")
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2 or embedding.shape[0] != hidden:
            raise SourceError(
                f"{self._path} has no token_embd.weight of width {hidden}; download it again."
            )
        eps = meta.get("attention.layer_norm_rms_epsilon", 1e-6)
        if not isinstance(eps, float):
            raise SourceError(f"{self._path} says layer_norm_rms_epsilon = {eps!r}, not a number.")
        return {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": meta.get("feed_forward_length"),
            "num_hidden_layers": meta.get("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": meta.get("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": meta.get("context_length"),
            "rms_norm_eps": float(np.format_float_positional(np.float32(eps))),
            "rope_theta": meta.get("rope.freq_base", 10000.0),
            "rope_scaling": self._rope_scaling(meta),
            "vocab_size": int(embedding.shape[1]),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_down.bias" in self._tensors,
        }

    def _rope_scaling(self, meta: dict[str, Any]) -> dict[str, Any] | None:
        if ROPE_FACTORS in self._tensors:
            factors = np.asarray(self._tensors[ROPE_FACTORS].data, dtype=np.float64)
            return {"rope_type": "per_frequency", "factors": factors.ravel().tolist()}
        kind = meta.get("rope.scaling.type")
        if kind in (None, "none"):
            return None
        original = meta.get("rope.scaling.original_context_length")
        return {
            "rope_type": kind,
            "factor": meta.get("rope.scaling.factor", 1.0),
            "original_max_position_embeddings": original,
        }

    def _name_map(self) -> dict[str, str]:
        names = {}
        for stored in self._tensors:
            if stored == ROPE_FACTORS:
                continue
            hf = NAMES.get(stored)
            match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", stored)
            if match and match[2] in LAYER_NAMES:
                hf = f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"
            if hf is None:
                raise UnsupportedModelError(
                    f"{self._path} holds tensor {stored}, which a Llama decoder does not have."
                )
            names[hf] = stored
        return names


def _unpermute(value: Array, heads: int) -> Array:
    """Undo llama.cpp's interleaving of Q/K rows: pairs (i, i + D/2) stood next to each other."""
    rows = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(value.shape)
