"""What every model source offers, whatever its format."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from edgechat.errors import SourceError
from edgechat.export.spec import Array


@dataclass
class TextFiles:
    """Tokenizer and chat format of a model.

    ``eos_ids`` is the union of every end id the source names; ``adds_bos`` tells whether the
    tokenizer itself puts ``bos_id`` in front of a text.
    """

    tokenizer_json: str
    chat_template: str | None
    bos_id: int | None
    eos_ids: list[int]
    adds_bos: bool
    special: dict[str, str] = field(default_factory=dict)


class Source(Protocol):
    """A model on disk: config in Hugging Face terms, tensors read one by one."""

    kind: str
    name: str
    config: dict[str, Any]

    def tensor(self, name: str) -> Array:
        """The tensor of that Hugging Face name as float32; SourceError when absent."""

    def text(self) -> TextFiles: ...


def read_checked(source: Source, name: str, shape: tuple[int, ...]) -> Array:
    """``source.tensor(name)``, refused when its shape or values cannot be right."""
    value = source.tensor(name)
    if value.shape != shape:
        raise SourceError(
            f"tensor {name} has shape {list(value.shape)}, the config asks for {list(shape)}; "
            "config and weights do not belong together."
        )
    if not np.isfinite(value).all():
        raise SourceError(f"tensor {name} holds NaN or infinite values; download the model again.")
    return value


def parse_json(text: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object, or one sentence that says which file is damaged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{what} is not valid JSON ({error}); download it again.") from None
    if not isinstance(value, dict):
        raise SourceError(f"{what} holds no JSON object; download it again.")
    return value


def load_tokenizer(text: str, what: str) -> Tokenizer:
    """A ``tokenizers`` object from the text of a tokenizer.json."""
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the Rust library raises plain Exception
        raise SourceError(f"{what} cannot be read by tokenizers ({error}).") from None
