"""Rebuilds tokenizer.json and the chat format from GGUF metadata."""

from __future__ import annotations

from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import TextFiles

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Split patterns of llama.cpp's `tokenizer.ggml.pre` names that belong to Llama-shaped models.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def text_files(meta: dict[str, Any]) -> TextFiles:
    """Tokenizer, template and special tokens of a GGUF file's metadata."""
    model = meta.get("tokenizer.ggml.model")
    tokens, types = meta.get("tokenizer.ggml.tokens"), meta.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(types, list) or len(tokens) != len(types):
        raise SourceError("the GGUF file carries no tokenizer; convert it again with one.")
    if model == "gpt2":
        tokenizer = _byte_level_bpe(tokens, meta)
    elif model == "llama":
        tokenizer = _sentencepiece_bpe(tokens, types, meta)
    else:
        raise UnsupportedModelError(f"GGUF tokenizer model {model!r} is not supported.")
    tokenizer.add_special_tokens(_added(tokens, types, CONTROL, special=True))
    tokenizer.add_tokens(_added(tokens, types, USER_DEFINED, special=False))

    def token_id(name: str) -> int | None:
        value = meta.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and value < len(tokens) else None

    ids = {name: token_id(name) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    special = {f"{name}_token": tokens[i] for name, i in ids.items() if i is not None}
    return TextFiles(
        tokenizer_json=tokenizer.to_str(),
        chat_template=meta.get("tokenizer.chat_template"),
        bos_id=ids["bos"],
        eos_ids=sorted({i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None}),
        # llama.cpp's default: SentencePiece models add BOS, byte-level ones do not.
        adds_bos=bool(meta.get("tokenizer.ggml.add_bos_token", model == "llama")),
        special=special,
    )


def _byte_level_bpe(tokens: list[str], meta: dict[str, Any]) -> Tokenizer:
    merges = [tuple(m.split(" ", 1)) for m in meta.get("tokenizer.ggml.merges") or []]
    if not merges:
        raise SourceError("the GGUF file carries no BPE merges; convert it again.")
    vocab = {token: index for index, token in enumerate(tokens)}
    name = meta.get("tokenizer.ggml.pre", "default")
    ignore_merges = False
    split: pre_tokenizers.PreTokenizer
    if name == "smollm":
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif name == "gpt-2":
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    elif name in ("llama-bpe", "llama3", "llama-v3"):
        ignore_merges = True
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        raise UnsupportedModelError(
            f"GGUF pre-tokenizer {name!r} is not supported; export from the Hugging Face folder."
        )
    try:
        model = models.BPE(vocab, merges, ignore_merges=ignore_merges)
    except Exception as error:  # the Rust library raises plain Exception
        raise SourceError(f"the GGUF file's BPE merges are damaged ({error}).") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(tokens: list[str], types: list[int], meta: dict[str, Any]) -> Tokenizer:
    """SentencePiece BPE keeps scores, not merges: a merge's rank is its result's score."""
    scores = meta.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise SourceError("the GGUF file's SentencePiece tokenizer has no scores.")
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token, kind, score in zip(tokens, types, scores, strict=True):
        if kind != NORMAL:
            continue
        parts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        local = [(left, right) for left, right in parts if left in vocab and right in vocab]
        local.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(-score, pair) for pair in local]
    merges.sort(key=lambda item: item[0])
    unknown = meta.get("tokenizer.ggml.unknown_token_id", 0)
    if not isinstance(unknown, int) or not 0 <= unknown < len(tokens):
        raise SourceError(f"the GGUF file's unknown_token_id {unknown!r} is no token.")
    tokenizer = Tokenizer(
        models.BPE(
            vocab,
            [pair for _, pair in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    steps = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _added(tokens: list[str], types: list[int], kind: int, special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, special=special, normalized=False)
        for token, found in zip(tokens, types, strict=True)
        if found == kind
    ]
