"""Rebuilds tokenizer.json and the chat format from GGUF metadata."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import TextFiles
from edgechat.export.sources.gguf_splits import SPLITTINGS
from edgechat.export.sources.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    Pieces,
)

Meta = dict[str, Any]
# A file names one end of a text; llama.cpp, too, knows ends of turns by what they are called.
ENDS = frozenset(
    """<|eot_id|> <|eom_id|> <|im_end|> <|end|> <end_of_turn> <|end_of_turn|> <|endoftext|>
    <|end_of_text|> <EOT> <｜end▁of▁sentence｜>""".split()
)
# Tokens behind which Phi-3 keeps white space; behind its others it is dropped.
PHI3_KEEPS = frozenset(("<unk>", "<s>", "<|endoftext|>"))


def text_files(meta: Meta) -> TextFiles:
    """Tokenizer, template and special tokens of a GGUF file's metadata.

    Raises SourceError for damaged metadata, UnsupportedModelError for a tokenizer that cannot
    be rebuilt.
    """
    model = meta.get("tokenizer.ggml.model")
    tokens = meta.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise SourceError("the GGUF file carries no tokenizer; convert it again with one.")
    types = meta.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise SourceError("the GGUF file's tokens have no types; convert it again.")
    name = meta.get("tokenizer.ggml.pre")
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level_bpe(tokens, types, meta, name)
    elif model == "llama":
        tokenizer, adds_bos = _sentencepiece(tokens, types, meta), True
    else:
        raise UnsupportedModelError(
            f"GGUF tokenizer model {model!r} is not supported; export from the model's folder."
        )

    def token_id(name: str) -> int | None:
        value = meta.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and 0 <= value < len(tokens) else None

    ids = {name: token_id(name) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    ends = {i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None}
    ends |= {i for i, token in enumerate(tokens) if token in ENDS and types[i] == CONTROL}
    return TextFiles(
        tokenizer_json=tokenizer.to_str(),
        chat_templates=_templates(meta),
        bos_id=ids["bos"],
        eos_ids=sorted(ends),
        adds_bos=bool(meta.get("tokenizer.ggml.add_bos_token", adds_bos)),
        special={f"{name}_token": tokens[i] for name, i in ids.items() if i is not None},
    )


def _templates(meta: Meta) -> dict[str, str]:
    """Chat templates by name."""
    key = "tokenizer.chat_template"
    found = {k.removeprefix(f"{key}."): v for k, v in meta.items() if k.startswith(f"{key}.")}
    found |= {"default": meta[key]} if key in meta else {}
    if not all(isinstance(template, str) for template in found.values()):
        raise SourceError("the GGUF file has chat templates that are no text; convert it again.")
    return found


def _byte_level_bpe(
    tokens: list[str], types: list[int], meta: Meta, name: Any
) -> tuple[Tokenizer, bool]:
    """The tokenizer, and whether those of its kind put BOS in front of a text."""
    splitting = SPLITTINGS.get(name) if isinstance(name, str) else None
    if splitting is None:
        known = "none" if name is None else repr(name)
        raise UnsupportedModelError(
            f"the GGUF file's pre-tokenizer ({known}) is not supported; edgechat knows "
            f"{', '.join(SPLITTINGS)}: export from the model's folder, or convert it again."
        )
    token, count = Counter(tokens).most_common(1)[0]
    if count > 1:
        raise SourceError(f"the GGUF file has {count} tokens {token!r}; convert it again.")
    merges = meta.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(m, str) and " " in m for m in merges):
        raise SourceError("the GGUF file carries no BPE merges; convert it again.")
    try:
        model = models.BPE(
            {token: index for index, token in enumerate(tokens)},
            [tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=splitting.merges_last,
        )
    except Exception as error:  # the Rust library raises plain Exception
        raise SourceError(f"the GGUF file's BPE merges are damaged ({error}).") from None
    tokenizer = Tokenizer(model)
    splitting.prepare(tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    return tokenizer, splitting.adds_bos


def _sentencepiece(tokens: list[str], types: list[int], meta: Meta) -> Tokenizer:
    scores = meta.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise SourceError(
            "the GGUF file's SentencePiece tokenizer has no scores; convert it again."
        )
    unknown = meta.get("tokenizer.ggml.unknown_token_id", 0)
    if type(unknown) is not int:
        raise SourceError(f"the GGUF file's unknown_token_id {unknown!r} is no token.")
    pieces = Pieces(
        tokens,
        scores,
        types,
        unknown,
        byte_fallback=BYTE in types,
        prefix="every" if meta.get("tokenizer.ggml.add_space_prefix", True) else "none",
        whole=frozenset(
            token
            for token, kind in zip(tokens, types, strict=True)
            if kind == USER_DEFINED and SPACE in token
        ),
    )
    tokenizer = pieces.tokenizer()
    if meta.get("general.architecture") == "phi3":
        tokenizer.add_tokens(
            [
                AddedToken(token, special=kind == CONTROL, normalized=False, rstrip=True)
                for token, kind in zip(tokens, types, strict=True)
                if kind in (CONTROL, USER_DEFINED, UNKNOWN) and token not in PHI3_KEEPS
            ]
        )
    return tokenizer
