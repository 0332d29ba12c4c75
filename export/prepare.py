"""What an export knows before it reads a tensor: from configs, headers and the tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from edgechat.bundle import Dims, Tokens
from edgechat.errors import SourceError
from edgechat.export.architectures import find_architecture
from edgechat.export.chat_templates import ChosenTemplate, choose_template
from edgechat.export.sources import Source, TextFiles
from edgechat.export.sources.base import check_tensors, load_tokenizer, read_checked
from edgechat.export.spec import DecoderSpec, SourceWeights
from edgechat.export.targets import Target

TemplateCheck = Callable[[str, dict[str, str]], None]


@dataclass(frozen=True)
class Model:
    """The decoder a source holds; ``capacity`` is its longest KV cache, in tokens."""

    spec: DecoderSpec
    weights: SourceWeights
    capacity: int
    notes: list[str]


def read_model(source: Source, backend: Target, capacity: int | None) -> Model:
    """Raises SourceError or UnsupportedModelError for what cannot be exported."""
    architecture = find_architecture(source.config)
    context_length = architecture.spec(source.config, capacity).context_length
    most = capacity or backend.capacity(context_length)
    spec = architecture.spec(source.config, most)
    weights = architecture.weights(spec, partial(read_checked, source), source.config)
    check_tensors(source, weights)
    notes = []
    if most > context_length:
        notes.append(
            f"note: capacity {most:,} is beyond the {context_length:,} tokens the model "
            "was trained for; a full cache that long will answer worse."
        )
    return Model(spec, weights, most, notes)


@dataclass(frozen=True)
class Text:
    """``template`` is the chat template chosen from those of ``files``."""

    files: TextFiles
    tokenizer: Tokenizer
    template: ChosenTemplate

    def write(self, folder: Path) -> list[str]:
        """Write the bundle's tokenizer and chat template; returns the files' names."""
        texts = {
            "tokenizer.json": self.files.tokenizer_json,
            "chat_template.jinja": self.template.source,
        }
        for name, content in texts.items():
            (folder / name).write_text(content, encoding="utf-8")
        return list(texts)


def read_text_files(
    source: Source, chat_template: str | None, check_template: TemplateCheck | None
) -> Text:
    """Tokenizer and chat template, the one called ``chat_template`` or in a file of that name;
    ``check_template`` (source, special tokens) tries it."""
    files = source.text()
    tokenizer = load_tokenizer(files.tokenizer_json, "the tokenizer")
    template = choose_template(files.chat_templates, chat_template)
    if check_template is not None:
        check_template(template.source, files.special)
    return Text(files, tokenizer, template)


def tokens_of(spec: DecoderSpec | Dims, text: Text) -> Tokens:
    """The special tokens; SourceError where tokenizer and model do not belong together."""
    files = text.files
    size = max(text.tokenizer.get_vocab().values(), default=-1) + 1
    if size > spec.vocab_size:
        raise SourceError(
            f"the tokenizer has {size:,} tokens but the model only {spec.vocab_size:,} embeddings; "
            "they do not belong together."
        )
    if not files.eos_ids:
        raise SourceError(
            "the model names no end-of-sequence token, so replies would never end; set "
            "eos_token_id in config.json or generation_config.json."
        )
    ids = [*files.eos_ids, *([] if files.bos_id is None else [files.bos_id])]
    if any(not isinstance(i, int) or not 0 <= i < spec.vocab_size for i in ids):
        raise SourceError(f"special token ids {ids} lie outside the {spec.vocab_size:,} embeddings")
    if not any(i < size for i in files.eos_ids):
        raise SourceError(f"no end-of-sequence id of {files.eos_ids} is a token of the tokenizer.")
    ends, stops = tuple(files.eos_ids), text.template.stops
    return Tokens(files.bos_id, ends, files.adds_bos, size, files.special, stops)
