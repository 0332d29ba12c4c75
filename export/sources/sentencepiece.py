"""SentencePiece vocabularies as tokenizers of the ``tokenizers`` library."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from edgechat.errors import SourceError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
SPACE = "▁"


@dataclass
class Pieces:
    """A vocabulary: ``tokens`` by id with their ``scores`` and ``types``.

    ``prefix``: where a space is put in front of text: of every stretch between added tokens, of
    the whole, or nowhere. ``one_space``: spaces are trimmed and joined. ``charsmap``: compiled
    normalisation rules. ``whole``: tokens that BPE takes whole wherever they
    stand in normalised text (in a unigram model their score sees to it).
    """

    tokens: list[str]
    scores: list[float]
    types: list[int]
    unknown: int
    unigram: bool = False
    byte_fallback: bool = True
    prefix: Literal["every", "first", "none"] = "every"
    one_space: bool = False
    charsmap: bytes = b""
    whole: frozenset[str] = frozenset()

    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Control and unknown tokens are special; they and user-defined ones that
        are not ``whole`` are found in raw text. SourceError when the vocabulary is damaged."""
        token, count = Counter(self.tokens).most_common(1)[0]
        if count > 1:
            raise SourceError(f"the tokenizer has {count} tokens {token!r}; download it again.")
        if not all(map(math.isfinite, self.scores)):
            raise SourceError("the tokenizer has scores that are no numbers; download it again.")
        if not 0 <= self.unknown < len(self.tokens):
            raise SourceError(f"the tokenizer's unknown id {self.unknown} is no token of it.")
        try:
            tokenizer = Tokenizer(self._unigram() if self.unigram else self._bpe())
        except Exception as error:  # the Rust library raises plain Exception
            raise SourceError(f"the tokenizer's vocabulary is damaged ({error}).") from None
        steps = self._rules()
        if self.one_space:
            steps += [
                normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""),
                normalizers.Replace(Regex(" {2,}"), " "),
            ]
        if self.prefix == "every":
            steps.append(normalizers.Prepend(SPACE))
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
        splits: list[pre_tokenizers.PreTokenizer] = []
        if self.prefix == "first":
            splits.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False))
        if self.whole and not self.unigram:
            longest_first = sorted(self.whole, key=len, reverse=True)
            pattern = Regex("|".join(map(re.escape, longest_first)))
            splits.append(pre_tokenizers.Split(pattern, "isolated"))
        if splits:
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
        strip = [] if self.prefix == "none" else [decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        tokenizer.add_tokens(
            [
                AddedToken(token, special=kind != USER_DEFINED, normalized=False)
                for token, kind in zip(self.tokens, self.types, strict=True)
                if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token not in self.whole
            ]
        )
        return tokenizer

    def _rules(self) -> list[normalizers.Normalizer]:
        if not self.charsmap:
            return []
        try:
            rules = normalizers.Precompiled(self.charsmap)
        except Exception as error:  # the Rust library raises plain Exception
            raise SourceError(
                f"the tokenizer's normalisation rules are damaged ({error}); download it again."
            ) from None
        if rules.normalize_str("\r") == rules.normalize_str("\n") == " ":
            # SentencePiece makes two spaces of this pair, Precompiled takes it for one character.
            return [normalizers.Replace("\r\n", "\n\n"), rules]
        return [rules]

    def _unigram(self) -> models.Unigram:
        vocabulary = list(zip(self.tokens, self.scores, strict=True))
        return models.Unigram(vocabulary, self.unknown, self.byte_fallback)

    def _bpe(self) -> models.BPE:
        """SentencePiece keeps scores, not merges: a merge's rank is its result's score."""
        ids = {token: index for index, token in enumerate(self.tokens)}
        mergeable = {t: i for t, i in ids.items() if self.types[i] in (NORMAL, USER_DEFINED)}
        merges = []
        for token, index in mergeable.items():
            if self.types[index] != NORMAL:
                continue
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in mergeable and right in mergeable:
                    rank = (-self.scores[index], index, mergeable[left], mergeable[right])
                    merges.append((rank, (left, right)))
        merges.sort()
        return models.BPE(
            ids,
            [pair for _, pair in merges],
            unk_token=self.tokens[self.unknown],
            fuse_unk=True,
            byte_fallback=self.byte_fallback,
            ignore_merges=bool(self.whole),  # they need no merges
        )
