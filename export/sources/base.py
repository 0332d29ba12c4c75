"""What every model source offers, whatever its format."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from edgechat.bundle import Adapter
from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.spec import Array, SourceWeights

# Tables of rotary angles and causal masks, which checkpoints used to hold.
HARMLESS = re.compile(r"\.(inv_freq|cos_cached|sin_cached)$|\.attention\.(masked_)?bias$")
LARGEST_TEXT = 256 << 20  # bytes; the longest real tokenizer.json are about 35 MB
MERGE = "merge it with peft (merge_and_unload, save_pretrained) and export the merged folder"
HEADS = ("lm_head.weight", "embed_out.weight")


@dataclass
class TextFiles:
    """Tokenizer and chat format of a model; ``chat_templates`` by name, mostly one "default".

    ``eos_ids`` is the union of every end id the source names; ``adds_bos`` tells whether the
    tokenizer itself puts ``bos_id`` in front of a text.
    """

    tokenizer_json: str
    chat_templates: dict[str, str]
    bos_id: int | None
    eos_ids: list[int]
    adds_bos: bool
    special: dict[str, str] = field(default_factory=dict)


class Source(Protocol):
    """A model on disk: config in Hugging Face terms, tensors read one by one.

    Tensors go by their Hugging Face names. ``adapter`` was merged into those named in ``changed``.
    """

    kind: str
    name: str
    config: dict[str, Any]
    adapter: Adapter | None
    changed: frozenset[str]

    def names(self) -> Collection[str]:
        """All tensors there are."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of ``names``, not reading it; UnsupportedModelError where it cannot
        be read."""

    def tensor(self, name: str) -> Array:
        """One of ``names`` as a new float32 array."""

    def text(self) -> TextFiles: ...


def check_tensors(source: Source, weights: SourceWeights) -> None:
    """Refuse a source that lacks a tensor the decoder reads, or has it in another shape, or holds
    one that nobody reads: a model without it would answer differently. Reads headers only."""
    missing = weights.shapes.keys() - set(source.names())
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise SourceError(
            f"{at_most(missing)} {verb} missing from {source.name}; config and weights do not "
            "belong together, or the model was not downloaded whole."
        )
    for name, shape in weights.shapes.items():
        _check_shape(name, source.shape(name), shape)
    unread = {name for name in set(source.names()) - weights.shapes.keys() if not is_harmless(name)}
    if weights.shared_table:
        unread -= set(HEADS)
        both = source.changed & {weights.shared_table, *HEADS}
        if both:
            raise UnsupportedModelError(
                f"the adapter changes {at_most(both)}, but embedding and head of the model are "
                f"one table; {MERGE}."
            )
    if unread:
        raise UnsupportedModelError(
            f"{source.name} holds weights that its config gives no place to ({at_most(unread)}); "
            "refusing rather than exporting a model that answers differently."
        )


def check_tied(source: Source, weights: SourceWeights) -> None:
    """Refuse a head that is stored beside the table the config takes for it and differs:
    transformers uses it then. Reads both."""
    for head in {*HEADS} & {*source.names()} - weights.shapes.keys():
        if weights.shared_table and not np.array_equal(
            source.tensor(head), source.tensor(weights.shared_table)
        ):
            raise SourceError(
                f"{source.name} stores {head}, which differs from the embedding that its config "
                "uses in its place; set tie_word_embeddings to false in config.json to use it."
            )


def is_harmless(name: str) -> bool:
    """Whether a tensor is a table that old checkpoints stored and the decoder makes itself."""
    return HARMLESS.search(name) is not None


def at_most(names: Iterable[str], count: int = 3) -> str:
    """The first names in a sentence, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - count} more" if len(found) > count else ""
    return ", ".join(found[:count]) + more


def read_checked(source: Source, name: str, shape: tuple[int, ...]) -> Array:
    """``source.tensor(name)``, refused when its shape or values cannot be right."""
    value = source.tensor(name)
    _check_shape(name, value.shape, shape)
    if not math.isfinite(value.min()) or not math.isfinite(value.max()):  # NaN is both
        raise SourceError(f"tensor {name} holds NaN or infinite values; download the model again.")
    return value


def _check_shape(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if found != shape:
        raise SourceError(
            f"tensor {name} has shape {list(found)}, the config asks for {list(shape)}; config "
            "and weights do not belong together."
        )


def read_text(path: Path) -> str:
    """A text file of a model; SourceError when it is unreadable or absurdly large."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} cannot be read ({error}).") from None


def read_bytes(path: Path) -> bytes:
    """As ``read_text``, for a file that is not text."""
    try:
        size = path.stat().st_size
        if size > LARGEST_TEXT:
            raise SourceError(f"{path} has {size:,} bytes, far too many; download it again.")
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error}).") from None


def parse_json(text: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object, or one sentence that says which file is damaged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{what} is not valid JSON ({error}); download it again.") from None
    if not isinstance(value, dict):
        raise SourceError(f"{what} holds no JSON object; download it again.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object, empty where there is no file."""
    return parse_json(read_text(path), str(path)) if path.is_file() else {}


def load_tokenizer(text: str, what: str) -> Tokenizer:
    """A ``tokenizers`` object from the text of a tokenizer.json."""
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the Rust library raises plain Exception
        raise SourceError(f"{what} cannot be read by tokenizers ({error}).") from None
