"""Reading a Hugging Face config strictly: what is not understood is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edgechat.errors import SourceError, UnsupportedModelError

# Fields that change nothing about the forward pass of a decoder.
HARMLESS = frozenset(
    """architectures model_type torch_dtype dtype transformers_version use_cache bos_token_id
    eos_token_id pad_token_id unk_token_id initializer_range pretraining_tp attention_dropout
    hidden_dropout resid_pdrop embd_pdrop is_llama_config tie_word_embeddings name_or_path
    output_attentions output_hidden_states return_dict return_dict_in_generate auto_map
    keys_to_ignore_at_inference id2label label2id problem_type task_specific_params
    is_encoder_decoder is_decoder chunk_size_feed_forward finetuning_task language""".split()
)
HARMLESS_PREFIXES = ("_", "transformers", "unsloth", "torchscript")


class Config:
    """Typed access to config fields; remembers which were read, see :meth:`refuse_rest`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive whole number; SourceError when it is missing or of another kind."""
        value = self.optional(name)
        if value is None:
            value = default
        if value is None:
            raise SourceError(f"the model's config lacks {name!r}; complete config.json.")
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise SourceError(f"the model's config says {name} = {value!r}, not a whole number.")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.optional(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise SourceError(f"the model's config says {name} = {value!r}, not a number above 0.")
        return float(value)

    def optional(self, name: str) -> Any:
        self._read.add(name)
        return self._values.get(name)

    def refuse_rest(self, neutral: Iterable[tuple[str, Any]] = ()) -> None:
        """Raise UnsupportedModelError for a field nobody read that may change the result.

        Fields that are absent, null, false, zero or equal to a value in ``neutral`` pass.
        """
        allowed = dict(neutral)
        for name, value in self._values.items():
            if name in self._read or name in HARMLESS or name.startswith(HARMLESS_PREFIXES):
                continue
            if value in (None, False, 0, "", [], {}) or allowed.get(name, object()) == value:
                continue
            raise UnsupportedModelError(
                f"the model's config sets {name} = {value!r}, which this architecture does not "
                "support; refusing rather than exporting a model that answers differently."
            )


def rope_fields(config: Config) -> tuple[float | None, dict[str, Any] | None]:
    """Base and scaling from ``rope_parameters`` (transformers 5) or the older two fields."""
    scaling = config.optional("rope_parameters") or config.optional("rope_scaling")
    config.optional("rope_scaling")
    theta = config.optional("rope_theta")
    if scaling is not None and not isinstance(scaling, dict):
        raise SourceError(f"the model's config has rope_scaling = {scaling!r}, not a mapping.")
    if scaling and theta is None:
        theta = scaling.get("rope_theta")
    if theta is not None and (not isinstance(theta, (int, float)) or not theta > 1):
        raise SourceError(f"the model's config says rope_theta = {theta!r}, not a number above 1.")
    return (None if theta is None else float(theta)), scaling
