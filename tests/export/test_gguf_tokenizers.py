"""A GGUF file's tokenizer gives the ids of the tokenizer that it was made from."""

from __future__ import annotations

import functools
import inspect
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from test_sentencepiece import CORPUS, EXTRA, LLAMA, TEXTS, train
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import TextFiles, load_tokenizer
from edgechat.export.sources.gguf_tokenizer import text_files
from edgechat.export.sources.sentencepiece import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED

# Pre-tokenizers as the models' tokenizer.json have them.
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
WORDS, PLAIN = BYTES | {"use_regex": True}, BYTES | {"use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern: str) -> dict[str, Any]:
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


LLAMA3 = inspect.signature(TikTokenConverter).parameters["pattern"].default
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
SPLITS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [WORDS],
    "olmo": [WORDS],
    "smollm": [DIGITS, WORDS],
    "refact": [DIGITS, WORDS],
    "llama-bpe": [split(LLAMA3), PLAIN],
    "dbrx": [split(LLAMA3), PLAIN],
    "qwen2": [split(LLAMA3.replace("{1,3}", "")), PLAIN],
    "stablelm2": [split(LLAMA3.replace("{1,3}", "")), PLAIN],
    "gpt-4o": [split(O200K), PLAIN],
    "tekken": [split(TEKKEN), PLAIN],
    "falcon": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        WORDS,
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ],
    "deepseek-coder": [
        *map(split, ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]),
        DIGITS,
        PLAIN,
    ],
}
CLASSES = {"gpt-2": GPT2Tokenizer, "olmo": GPTNeoXTokenizer, "qwen2": Qwen2Tokenizer}
CONTROLS, MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "    "]


def read(fill: Callable[[gguf.GGUFWriter], None], architecture: str = "llama") -> TextFiles:
    """What edgechat makes of a file with the metadata that ``fill`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        fill(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        reader = gguf.GGUFReader(path)
        return text_files({key: field.contents() for key, field in reader.fields.items()})


@functools.cache
def byte_level(name: str) -> tuple[Any, Tokenizer]:
    """A trained tokenizer of that kind, and what edgechat makes of its GGUF file."""
    original = Tokenizer(models.BPE(ignore_merges=name in ("llama-bpe", "tekken")))
    state = json.loads(original.to_str())
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": SPLITS[name]}
    original = Tokenizer.from_str(json.dumps(state))
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in CONTROLS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    original.train_from_iterator([*CORPUS.read_text().splitlines(True), *EXTRA * 5], trainer)
    original.add_tokens([AddedToken(token, normalized=False) for token in MARKS])
    original.decoder = decoders.ByteLevel()
    merges = [tuple(pair) for pair in json.loads(original.to_str())["model"]["merges"]]
    ids = original.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = dict.fromkeys(CONTROLS, CONTROL) | dict.fromkeys(MARKS, USER_DEFINED)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list([*tokens, "[PAD1]"])
        writer.add_token_types([*(kinds.get(t, NORMAL) for t in tokens), UNUSED])
        writer.add_token_merges([" ".join(pair) for pair in merges])
        writer.add_eos_token_id(0)

    found = read(fill)
    assert found.eos_ids == [0, 2] and found.adds_bos == (name in ("llama-bpe", "tekken"))
    if name in CLASSES:  # transformers builds these by itself
        vocabulary = {token: ids[token] for token in tokens if token not in MARKS}
        theirs = CLASSES[name](vocab=vocabulary, merges=merges, pad_token=CONTROLS[0])
        theirs.add_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROLS])
        theirs.add_tokens([AddedToken(token, normalized=False) for token in MARKS])
        return theirs.backend_tokenizer, load_tokenizer(found.tokenizer_json, name)
    return original, load_tokenizer(found.tokenizer_json, name)


MARKED = st.lists(TEXTS | st.sampled_from([*CONTROLS, *MARKS, "I'LL", "camelCase", "1234"])).map(
    "".join
)


@pytest.mark.parametrize("name", SPLITS)
@given(text=MARKED | st.text(max_size=20))
@settings(max_examples=120, deadline=None)
def test_byte_level_ids_are_those_of_the_original(name: str, text: str) -> None:
    theirs, ours = byte_level(name)
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    if name not in ("olmo", "qwen2"):  # which normalise
        assert ours.decode(ids, skip_special_tokens=False) == text


def sentencepiece_gguf(
    theirs: SentencePieceProcessor, architecture: str, prefix: bool | None, added: dict[str, int]
) -> TextFiles:
    """A model and ``added`` tokens (with their types) as llama.cpp's converter writes them."""
    count = theirs.vocab_size()
    types = [NORMAL] * count
    for i in range(count):
        if theirs.is_byte(i):
            types[i] = BYTE
        elif theirs.is_control(i):
            types[i] = CONTROL
        elif theirs.is_unknown(i):
            types[i] = 2
    tokens = [*map(theirs.id_to_piece, range(count)), *added, "[PAD9]"]

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        scores = [theirs.get_score(i) for i in range(count)]
        writer.add_token_scores([*scores, *[-1000.0] * (len(added) + 1)])
        writer.add_token_types([*types, *added.values(), UNUSED])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if prefix is not None:
            writer.add_add_space_prefix(prefix)

    return read(fill, architecture)


ADDED = {"<start_of_turn>": CONTROL, "<end_of_turn>": CONTROL, "<mark>": USER_DEFINED}


@pytest.mark.parametrize("prefix", [None, True, False])
def test_sentencepiece_ids_are_those_of_the_original(prefix: bool | None) -> None:
    theirs = SentencePieceProcessor(
        model_proto=train(**LLAMA, add_dummy_prefix=prefix is not False)
    )
    found = sentencepiece_gguf(theirs, "gemma2", prefix, ADDED)
    ours = load_tokenizer(found.tokenizer_json, "")
    first = theirs.vocab_size()
    assert (found.bos_id, found.eos_ids, found.adds_bos) == (1, [2, first + 1], True)

    @given(st.lists(TEXTS | st.sampled_from(list(ADDED)), max_size=6))
    @settings(max_examples=150, deadline=None)
    def check(parts: list[str]) -> None:
        parts = [part.replace("▁", "").replace("<mark>", " ") or "<mark>" for part in parts]
        joined: list[str] = []
        for part in parts:  # neighbouring texts are one text
            if joined and part not in ADDED and joined[-1] not in ADDED:
                joined[-1] += part
            else:
                joined.append(part)
        expected: list[int] = []
        for part in joined:
            known = [first + list(ADDED).index(part)] if part in ADDED else None
            expected += theirs.encode(part) if known is None else known
        ids = ours.encode("".join(joined), add_special_tokens=False).ids
        assert ids == expected

    check()


def test_phi3_drops_white_space_behind_its_marks() -> None:
    theirs = SentencePieceProcessor(model_proto=train(**LLAMA))
    added = {"<|endoftext|>": CONTROL, "<|user|>": CONTROL, "<|end|>": CONTROL}
    found = sentencepiece_gguf(theirs, "phi3", None, added)
    first = theirs.vocab_size()
    assert found.eos_ids == [2, first, first + 2]
    ours = load_tokenizer(found.tokenizer_json, "")
    ids = ours.encode("<|user|>\nHello<|end|>\n<|endoftext|>\n", add_special_tokens=False).ids
    hello, feed = theirs.encode("Hello"), theirs.encode("\n")
    assert ids == [first + 1, *hello, first + 2, first, *feed]


def test_named_templates() -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_merges(["a b"])
        writer.add_chat_template([{"name": n, "template": n} for n in ("default", "tool_use")])

    assert read(fill).chat_templates == {"default": "default", "tool_use": "tool_use"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"pre": None}, UnsupportedModelError, r"pre-tokenizer \(none\)"),
        ({"pre": "exaone"}, UnsupportedModelError, "'exaone'"),
        ({"model": "bert"}, UnsupportedModelError, "'bert'"),
        ({"merges": None}, SourceError, "no BPE merges"),
        ({"merges": ["ab"]}, SourceError, "no BPE merges"),
        ({"merges": ["a z"]}, SourceError, "damaged"),
        ({"tokens": None}, SourceError, "no tokenizer"),
        ({"tokens": ["a", "a", "b"]}, SourceError, "2 tokens 'a'"),
        ({"token_type": [1]}, SourceError, "no types"),
        ({"model": "llama"}, SourceError, "no scores"),
        ({"model": "llama", "scores": [1.0, float("nan"), 0.0]}, SourceError, "no numbers"),
        ({"model": "llama", "scores": [1.0] * 3, "unknown_token_id": 9}, SourceError, "unknown"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "merges": ["a b"]}
    meta = {f"tokenizer.ggml.{k}": v for k, v in (values | changes).items() if v is not None}
    with pytest.raises(error, match=message) as caught:
        text_files(meta)
    assert "\n" not in str(caught.value)
