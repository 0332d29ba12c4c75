"""Token ids to text as they come, without ever showing half a character."""

from __future__ import annotations

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Streams text; the pieces of ``push`` and ``flush`` add up to the whole.

    Decodes a short tail twice, with and without the new tokens, and gives out the difference
    once it ends in a whole character, so it works for byte-level and byte-fallback tokenizers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tail: list[int] = []  # shown tokens that give context, then the unshown ones
        self._shown = 0  # how many of the tail are shown

    def push(self, token: int) -> str:
        """The text that ``token`` completes, often "" in the middle of a character."""
        self._tail.append(token)
        before = self._decode(self._tail[: self._shown])
        text = self._decode(self._tail)
        if len(text) <= len(before) or text.endswith(REPLACEMENT):
            return ""
        self._tail = self._tail[self._shown :]
        self._shown = len(self._tail)
        return text[len(before) :]

    def flush(self) -> str:
        """What is left when no token follows: bytes of an unfinished character, as U+FFFD."""
        before = self._decode(self._tail[: self._shown])
        text = self._decode(self._tail)
        self._tail, self._shown = [], 0
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""
