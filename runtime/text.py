"""Tokenizer and chat format of a bundle: conversations to token ids and back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgechat.bundle import Bundle
from edgechat.errors import BundleError, TemplateError
from edgechat.runtime.chat_template import ChatTemplate, Message
from edgechat.runtime.detokenizer import Detokenizer
from edgechat.runtime.placement import Place, Placement

Ids = NDArray[np.int64]


@dataclass
class Turn:
    """One message; ``ids`` are a reply's tokens as generated (None: tokenise the content)."""

    role: str
    content: str
    ids: list[int] | None = None

    def __post_init__(self) -> None:
        self.ends: list[int] | None = None  # the character behind each of ids, once asked for

    @property
    def message(self) -> Message:
        return {"role": self.role, "content": self.content}


Span = tuple[int, int]
# As tokens are spelled in a vocabulary: \u010a is byte-level BPE's line feed.
SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", "…", "\n", "\u010a", "<0x0A>")

HEADER = 16  # tokens that a template puts between a turn's mark and its text, at most


@dataclass
class Prompt:
    """``ids`` [n]; ``spans``: the tokens of each turn's text (None where the template hides it);
    ``starts``: tokens at which turns start, marks included, last the reply's to come."""

    ids: Ids
    spans: list[Span | None]
    starts: list[int]


@dataclass
class _Piece:
    """Text that the model did not write; ``ends``: the character behind each token."""

    ids: list[int]
    ends: list[int]


class TextCodec:
    """Turns ↔ token ids for one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        tokens = bundle.manifest.tokens
        self.eos, self.stops = frozenset(tokens.eos), tokens.stops
        self.size = tokens.size
        self._bos = tokens.bos if tokens.adds_bos else None
        try:
            self.tokenizer = Tokenizer.from_file(str(bundle.path("tokenizer.json")))
        except Exception as error:  # the Rust library raises plain Exception
            raise BundleError(f"the bundle's tokenizer.json cannot be read ({error}).") from None
        known = max(self.tokenizer.get_vocab().values(), default=-1) + 1
        if known != tokens.size:
            raise BundleError(
                f"the bundle's tokenizer has {known:,} tokens, its manifest says {tokens.size:,}; "
                "export the bundle again."
            )
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.template: ChatTemplate | None = None
        self._placement: Placement | None = None
        if "chat_template.jinja" in bundle.manifest.files:
            try:
                source = bundle.path("chat_template.jinja").read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BundleError(f"the chat template cannot be read ({error}).") from None
            self.template = ChatTemplate(source, tokens.special)
            self._placement = Placement(self.template)
        # Token ids of the text around replies, which repeats from turn to turn.
        self._system: tuple[list[str], int] | None = None
        self._memo: dict[str, _Piece] = {}
        added = self.tokenizer.get_added_tokens_decoder()
        self.marks = frozenset(i for i, token in added.items() if token.special)
        vocabulary = self.tokenizer.get_vocab().items()
        self.sentence_ends = frozenset(i for t, i in vocabulary if t.endswith(SENTENCE_ENDS))

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text`` alone; special tokens written out in it count as such."""
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        except (TypeError, UnicodeError):
            raise TemplateError("the text to tokenise is not valid Unicode.") from None

    def encode_text(self, text: str) -> Ids:
        """Tokens of a whole text, with BOS in front where the tokenizer puts it."""
        return np.asarray(self._with_bos(self.encode(text)), dtype=np.int64)

    def _encode_piece(self, text: str, behind: bool) -> _Piece:
        """Tokens of template text; ``behind`` others, where SentencePiece must not put the space
        it puts in front of a text."""
        anchor = "x" if behind else ""
        before = self.encode(anchor)
        whole = self.tokenizer.encode(anchor + text, add_special_tokens=False)
        if list(whole.ids[: len(before)]) != before:
            anchor, before = "", []
            whole = self.tokenizer.encode(text, add_special_tokens=False)
        ends = [end - len(anchor) for _, end in whole.offsets[len(before) :]]
        return _Piece(list(whole.ids[len(before) :]), ends)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.tokenizer)

    def prompt(self, turns: Sequence[Turn], aside: bool = False) -> Prompt:
        """Everything the model should have read before it answers.

        ``aside``: the turns are not the conversation, whose tokens stay remembered. What the
        template keeps of a reply appears as the ids that were generated. BOS stands in front
        exactly once if the template or the tokenizer puts it there.
        """
        if self._placement is None:
            raise TemplateError(
                "the bundle has no chat template; export a chat model, or add chat_template.jinja "
                "to the model folder and export again."
            )
        text, places = self._placement.place([turn.message for turn in turns])
        ids: list[int] = []
        ends: list[int] = []  # the character of ``text`` behind each token
        memo: dict[str, _Piece] = {}
        done = 0

        def add_text(stop: int) -> None:
            if not (gap := text[done:stop]):
                return
            piece = memo[gap] = self._memo.get(gap) or self._encode_piece(gap, done > 0)
            ids.extend(piece.ids)
            ends.extend(done + end for end in piece.ends)

        for place in places:
            start, stop, kept = self._said(turns[place.message], place)
            if not kept:
                continue
            if text[done:start].endswith(" ") and self._leads_with_space(kept[:8]):
                start -= 1
            add_text(start)
            ids += kept
            ends += [stop] * len(kept)
            done = stop
        add_text(len(text))
        if not aside:
            self._memo = memo
        spans: list[Span | None] = [None] * len(turns)
        for place in places:
            first, last = _token_span(ends, place.start, place.stop)
            known = spans[place.message] or (first, last)
            spans[place.message] = min(first, known[0]), max(last, known[1])
        shift = len(self._with_bos(ids[:1])) - len(ids[:1])
        ids = self._with_bos(ids)
        spans = [None if s is None else (s[0] + shift, s[1] + shift) for s in spans]
        return Prompt(np.asarray(ids, dtype=np.int64), spans, self._starts(ids, spans))

    def _said(self, turn: Turn, place: Place) -> tuple[int, int, list[int]]:
        """The generated ids that make up ``place``, and where in the prompt their text stands
        (start, stop); fewer than all where the template cut through a token."""
        ids, source, end = turn.ids, place.source, place.source + place.stop - place.start
        if ids is None or (source == 0 and end == len(turn.content)):
            return place.start, place.stop, ids or []
        if turn.ends is None:
            detokenizer, position, turn.ends = self.detokenizer(), 0, []
            for token in ids:
                position += len(detokenizer.push(token))
                turn.ends.append(position)
            if ids:
                turn.ends[-1] += len(detokenizer.flush())
        ends = [0, *turn.ends]  # the characters at which tokens meet
        first = bisect_left(ends, source)
        if ends[-1] != len(turn.content) or first == len(ends):
            return place.start, place.start, []
        last = bisect_left(ends, ends[bisect_right(ends, end) - 1])
        offset = place.start - source
        return offset + ends[first], offset + ends[last], ids[first:last]

    def _leads_with_space(self, ids: list[int]) -> bool:
        """Whether ``ids`` begin with a space that SentencePiece does not show at the beginning."""
        alone, behind = self.decode(ids), self.decode([*self.encode("x"), *ids])
        return bool(alone) and behind.endswith(" " + alone)

    def _starts(self, ids: list[int], spans: list[Span | None]) -> list[int]:
        """Where turns start: at the template's last mark in front of each text, if it is near."""
        starts = []
        for span in [*spans, (len(ids), len(ids))]:
            if span is None:
                continue
            marks = [i for i in range(max(0, span[0] - HEADER), span[0]) if ids[i] in self.marks]
            starts.append(marks[-1] if marks else span[0])
        return sorted(starts)

    def system_ids(self, system: Sequence[Turn]) -> Ids:
        """The tokens in front of the first message, whatever it says."""
        if self.template is None:
            return np.zeros(0, dtype=np.int64)
        count = self.system_tokens(system)
        return self.prompt([*system, Turn("user", "a")], aside=True).ids[:count]

    def system_tokens(self, system: Sequence[Turn]) -> int:
        """How many tokens stand in front of the first message, whatever it says."""
        contents = [turn.content for turn in system]
        if self._system is None or self._system[0] != contents:
            prompts = (self.prompt([*system, Turn("user", text)], aside=True) for text in "ab")
            one, other = (prompt.ids for prompt in prompts)
            shortest = min(len(one), len(other))
            differs = np.flatnonzero(one[:shortest] != other[:shortest])
            self._system = (contents, int(differs[0]) if len(differs) else shortest)
        return self._system[1]

    def reply_ids(self, ids: list[int], text: str) -> list[int]:
        """Ids for a reply cut to ``text`` (a stop string fell inside the generated ``ids``)."""
        count = len(ids)
        while count and not text.startswith(self.decode(ids[:count])):
            count -= 1
        rest = text[len(self.decode(ids[:count])) :]
        return ids[:count] + (self.encode(rest) if rest else [])

    def _with_bos(self, ids: list[int]) -> list[int]:
        return ids if self._bos is None or ids[:1] == [self._bos] else [self._bos, *ids]


def _token_span(ends: list[int], start: int, stop: int) -> Span:
    """The tokens that hold characters ``start`` … ``stop - 1``, where ``ends`` are the
    characters behind each."""
    first = bisect_right(ends, start)
    if start == stop:
        return first, first
    # A character may be several tokens, which then all end where it does.
    return first, max(bisect_right(ends, stop), bisect_left(ends, stop) + 1)
