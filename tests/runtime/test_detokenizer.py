"""Streamed text is the whole text, and never half a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from edgechat.runtime.detokenizer import Detokenizer


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.fixture(scope="module")
def byte_level(tiny_bundle: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_bundle / "tokenizer.json"))


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """SentencePiece style: ▁ for spaces, <0x..> for bytes, one leading space stripped."""
    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    for word in ["▁", "▁hello", "▁world", "a", "é", "好"]:
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 259), max_size=30))
def test_any_bytes_add_up(byte_level: Tokenizer, ids: list[int]) -> None:
    assert "".join(stream(byte_level, ids)) == byte_level.decode(ids)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=30))
def test_no_half_characters(byte_level: Tokenizer, text: str) -> None:
    text = text.replace("\ufffd", "")
    pieces = stream(byte_level, byte_level.encode(text).ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(["hello", "好", "👩‍👩‍👧", " ", "é", "ß"]), max_size=12))
def test_byte_fallback(byte_fallback: Tokenizer, parts: list[str]) -> None:
    ids: list[int] = []
    for part in parts:
        known = byte_fallback.token_to_id(part.replace(" ", "▁"))
        ids += [known] if known is not None else list(part.encode())
    pieces = stream(byte_fallback, ids)
    assert "".join(pieces) == byte_fallback.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
