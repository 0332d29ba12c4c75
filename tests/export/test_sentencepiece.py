"""A tokenizer.model gives the ids of SentencePiece itself, with added tokens as in transformers."""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tiny_models import write_model
from tokenizers import Tokenizer
from transformers import LlamaTokenizer

import edgechat.export.quantize.calibration
from edgechat.bundle import load_bundle
from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export import export_model, open_source
from edgechat.export.sources.base import load_tokenizer
from edgechat.export.sources.hf_text import folder_text
from edgechat.export.sources.sentencepiece_file import read_pieces
from edgechat.runtime.detokenizer import Detokenizer
from edgechat.runtime.text import TextCodec, Turn

CORPUS = Path(edgechat.export.quantize.calibration.__file__).with_name("calibration.txt")
EXTRA = ["你好 世界", "Grüße aus Köln", "== ==== <mark>", "    indented"]
IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
LLAMA = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, **IDENTITY}
MARKS = {"user_defined_symbols": ["<mark>", "==", "▁▁", "▁▁▁▁"]}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gemma": {**LLAMA, **MARKS, "add_dummy_prefix": False},
    "marks behind a prefix": {**LLAMA, **MARKS},
    "bpe, no bytes": {"model_type": "bpe", **IDENTITY},
    "bpe, normalised": {"model_type": "bpe", "byte_fallback": True},
    "t5": {"model_type": "unigram"},
    "unigram, bytes": {"model_type": "unigram", "byte_fallback": True, **IDENTITY},
    "unigram, nfkc": {"model_type": "unigram", "normalization_rule_name": "nfkc"},
    "unigram, marks": {"model_type": "unigram", "byte_fallback": True, **IDENTITY, **MARKS},
}
WORDS = [*" abcdeXY019.,!?'\"<>=\n\t", "  ", "    ", "\r\n", "the ", "Hello", "==", "<mark>"]
WORDS += ["é", "e\u0301", "ß", "好", "你好", "각", "ﬁ", "½", "İ", "👩‍👩‍👧", "\u00a0", "\u200b"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=20).map("".join)


def train(**options: Any) -> bytes:
    """A small SentencePiece model."""
    lines = [*CORPUS.read_text().splitlines(), *EXTRA * 5]
    out = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(filter(None, lines)),
        model_writer=out,
        minloglevel=2,
        **{"vocab_size": 420, "character_coverage": 0.99, "hard_vocab_limit": False, **options},
    )
    return out.getvalue()


@functools.cache
def trained(name: str) -> tuple[SentencePieceProcessor, Tokenizer]:
    """A model of ``MODELS``, and what is made of it."""
    data = train(**MODELS[name])
    pieces, _, _ = read_pieces(data, name)
    tokenizer = load_tokenizer(pieces.tokenizer().to_str(), name)
    return SentencePieceProcessor(model_proto=data), tokenizer


@pytest.mark.parametrize("name", MODELS)
@given(text=TEXTS | st.text(max_size=20))
@settings(max_examples=150, deadline=None)
def test_ids_and_text_are_those_of_sentencepiece(name: str, text: str) -> None:
    theirs, ours = trained(name)
    text = text.replace("▁", "")  # which stands for a space
    ids, expected = ours.encode(text, add_special_tokens=False).ids, theirs.encode(text)
    if ids != expected:  # of equally likely splits it may be another one, but no other text
        assert name.startswith(("t5", "unigram"))
        assert sum(map(theirs.get_score, ids)) == pytest.approx(
            sum(map(theirs.get_score, expected)), abs=1e-3
        )
    if theirs.unk_id() in ids:
        return
    decoded = ours.decode(ids, skip_special_tokens=False)
    assert decoded == theirs.decode(ids)
    detokenizer = Detokenizer(ours)
    assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == decoded


ADDED = ("<|im_start|>", "<|im_end|>")
CHAT = """\
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%} {{- ' ' + m.content + '</s>' -}}
    {%- else -%} {{- '[INST] ' + m.content + ' [/INST]' -}} {%- endif -%}
{%- endfor -%}
"""


@pytest.fixture
def make_folder_of(tmp_path: Path) -> Callable[..., tuple[Path, SentencePieceProcessor]]:
    """A folder with a tokenizer.model and two added tokens, and the model itself."""

    def make(**config: Any) -> tuple[Path, SentencePieceProcessor]:
        data = train(**LLAMA)
        theirs = SentencePieceProcessor(model_proto=data)
        (tmp_path / "tokenizer.model").write_bytes(data)
        names = ["<unk>", "<s>", "</s>"]
        tokens = dict(enumerate(names)) | {
            theirs.vocab_size() + number: token for number, token in enumerate(ADDED)
        }
        flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
        values = {
            "tokenizer_class": "LlamaTokenizer",
            "bos_token": "<s>",
            "eos_token": "<|im_end|>",
            "added_tokens_decoder": {
                str(i): {"content": token, "special": True, **flags} for i, token in tokens.items()
            },
        }
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(values | config))
        return tmp_path, theirs

    return make


CHATS = st.lists(
    st.sampled_from([*ADDED, "</s>", "user\n", "Hello there", "12", "é", "好", " x", "\n", "  "]),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("prefix", [True, False, None])
def test_added_tokens_and_legacy(
    legacy: bool | None,
    prefix: bool | None,
    make_folder_of: Callable[..., tuple[Path, SentencePieceProcessor]],
) -> None:
    """What stands between added tokens is SentencePiece's; a space comes in front of all of it
    (legacy), of what the text begins with, or nowhere."""
    config = {"legacy": legacy, "add_prefix_space": prefix}
    folder, theirs = make_folder_of(**{k: v for k, v in config.items() if v is not None})
    model = ModelProto.FromString(theirs.serialized_model_proto())
    model.normalizer_spec.add_dummy_prefix = False
    plain = SentencePieceProcessor(model_proto=model.SerializeToString())
    found = folder_text(folder, {"eos_token_id": 2})
    assert (found.bos_id, found.adds_bos) == (1, True)
    assert found.eos_ids == [2, theirs.vocab_size() + 1]
    ours = load_tokenizer(found.tokenizer_json, "")
    added = {token: ours.token_to_id(token) for token in (*ADDED, "</s>")}
    transformers = None if legacy is None else LlamaTokenizer.from_pretrained(folder)

    @given(CHATS)
    @settings(max_examples=100, deadline=None)
    def check(text: str) -> None:
        if legacy is False:  # tokenizers puts no second space in front of one
            text = text.lstrip(" ")
        expected: list[int] = []
        for place, part in enumerate(re.split("(" + "|".join(map(re.escape, added)) + ")", text)):
            spaced = prefix is not False and (legacy is not False or place == 0)
            known = added.get(part)
            expected += (theirs if spaced else plain).encode(part) if known is None else [known]
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == expected
        if transformers is not None and " " not in text:  # it ranks runs of spaces by id
            assert ids == transformers(text, add_special_tokens=False)["input_ids"]

    check()


def test_a_model_with_only_a_tokenizer_model_talks(
    make_folder_of: Callable[..., tuple[Path, SentencePieceProcessor]],
) -> None:
    folder, theirs = make_folder_of(chat_template=CHAT)
    write_model(folder, "llama", vocab_size=theirs.vocab_size() + 2)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    make_folder_of(chat_template=CHAT)
    bundle = export_model(open_source(str(folder), print), folder / "bundle", "fp32").folder
    codec = TextCodec(load_bundle(bundle))
    question = codec.prompt([Turn("user", "Hello")]).ids.tolist()
    assert question == [theirs.bos_id(), *theirs.encode("[INST] Hello [/INST]")]
    # The reply begins with a space that its text does not show, and the template writes one too.
    reply = Turn("assistant", "There you are", theirs.encode("There you are"))
    prompt = codec.prompt([Turn("user", "Hello"), reply, Turn("user", "x")])
    text = codec.tokenizer.decode(prompt.ids.tolist(), skip_special_tokens=False)
    assert text == "<s> [INST] Hello [/INST] There you are</s> [INST] x [/INST]"
    assert prompt.ids[: len(question)].tolist() == question
    assert prompt.spans[1] == (len(question), len(question) + len(reply.ids or []))
    assert prompt.ids[slice(*prompt.spans[1])].tolist() == reply.ids


def test_what_cannot_be_converted_is_refused_with_the_remedy(
    make_folder_of: Callable[..., tuple[Path, SentencePieceProcessor]], tmp_path: Path
) -> None:
    folder, _ = make_folder_of()
    path = folder / "tokenizer.model"
    good = path.read_bytes()
    shifted = json.loads((folder / "tokenizer_config.json").read_text())
    *_, last = shifted["added_tokens_decoder"]
    shifted["added_tokens_decoder"]["9999"] = shifted["added_tokens_decoder"].pop(last)
    bad: dict[str, tuple[bytes, type[Exception], str]] = {
        "tiktoken": (b"IQ== 0\nIg== 1\n", SourceError, "no SentencePiece model"),
        "cut": (good[: len(good) // 2], SourceError, "no SentencePiece model"),
        "empty": (b"", SourceError, "no SentencePiece model"),
        "words": (train(model_type="word"), UnsupportedModelError, "neither BPE nor unigram"),
        "suffix": (
            train(**LLAMA, treat_whitespace_as_suffix=True),
            UnsupportedModelError,
            "end of words",
        ),
    }
    for data, error, message in bad.values():
        path.write_bytes(data)
        with pytest.raises(error, match=f"{message}.*save_pretrained"):
            folder_text(folder, {})
    path.write_bytes(good)
    (folder / "tokenizer_config.json").write_text(json.dumps(shifted))
    with pytest.raises(SourceError, match=r"9,999.*save_pretrained"):
        folder_text(folder, {})
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(SourceError, match=r"no tokenizer\.json and no tokenizer\.model"):
        folder_text(folder, {})


@given(cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_a_damaged_file_gives_one_sentence(cuts: list[tuple[float, int]]) -> None:
    data = np.frombuffer(trained("llama")[0].serialized_model_proto(), np.uint8).copy()
    for place, value in cuts:
        data[int(place * (len(data) - 1))] = value
    try:
        read_pieces(data.tobytes(), "it")[0].tokenizer()
    except (SourceError, UnsupportedModelError) as error:
        assert "\n" not in str(error)
