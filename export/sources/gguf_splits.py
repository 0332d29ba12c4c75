"""How byte-level BPE splits a text first, by the names that GGUF files have for it.

The patterns are those of the models' own tokenizer.json, which llama.cpp follows with its
(src/llama-vocab.cpp, where the names are from).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.pre_tokenizers import (
    ByteLevel,
    Digits,
    PreTokenizer,
    Punctuation,
    Sequence,
    Split,
)

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES
)


@dataclass(frozen=True)
class Splitting:
    """``patterns`` that isolate what they match, in turn, or GPT-2's own without any.

    ``digits``: each is apart first. ``composed``: text is normalised (NFC). ``merges_last``: a
    word that is a token is not merged. ``adds_bos``: where the file does not say.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    composed: bool = False
    merges_last: bool = False
    adds_bos: bool = False

    def prepare(self, tokenizer: Tokenizer) -> None:
        """Give ``tokenizer`` what comes in front of its merges."""
        if self.composed:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = Sequence(self.steps())

    def steps(self) -> list[PreTokenizer]:
        steps: list[PreTokenizer] = [Digits(individual_digits=True)] if self.digits else []
        steps += [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return [*steps, ByteLevel(add_prefix_space=False, use_regex=not self.patterns)]


class FalconSplitting(Splitting):
    """Punctuation apart, GPT-2's words, then numbers by three digits."""

    def steps(self) -> list[PreTokenizer]:
        return [
            Punctuation("contiguous"),
            *super().steps(),
            Digits(individual_digits=False),
            Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]


GPT2 = Splitting()
DIGITS = Splitting(digits=True)
COMPOSED = Splitting(composed=True)
CL100K = Splitting((ENDINGS + WORDS % "{1,3}",))
LLAMA3 = replace(CL100K, merges_last=True, adds_bos=True)
QWEN2 = Splitting((ENDINGS + WORDS % "",), composed=True)
GPT4O = Splitting((CASED % (f"{ENDINGS}?", f"{ENDINGS}?", "{1,3}"),))
TEKKEN = Splitting((CASED % ("", "", ""),), merges_last=True, adds_bos=True)
DEEPSEEK_CODER = Splitting(
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}")
)
SPLITTINGS: dict[str, Splitting] = {
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "smollm": DIGITS,
    "refact": DIGITS,  # Granite 3
    "starcoder": DIGITS,
    "codeshell": DIGITS,
    "olmo": COMPOSED,  # GPT-NeoX, Pythia
    "mpt": COMPOSED,
    "falcon": FalconSplitting(),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "falcon3": LLAMA3,
    "dbrx": CL100K,  # OLMo 2, Phi-4, Granite 4
    "smaug-bpe": CL100K,
    "qwen2": QWEN2,
    "megrez": QWEN2,
    "deepseek-r1-qwen": replace(QWEN2, composed=False),
    "stablelm2": replace(QWEN2, composed=False),
    "gpt-4o": GPT4O,  # Phi-4-mini
    "llama4": GPT4O,
    "tekken": TEKKEN,  # Mistral Nemo
    "deepseek-coder": DEEPSEEK_CODER,
}
