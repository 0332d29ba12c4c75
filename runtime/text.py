"""Tokenizer and chat format of a bundle: conversations to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgechat.bundle import Bundle
from edgechat.errors import BundleError, TemplateError
from edgechat.runtime.chat_template import ChatTemplate, Message
from edgechat.runtime.detokenizer import Detokenizer

Ids = NDArray[np.int64]


@dataclass
class Turn:
    """One message; ``ids`` are a reply's tokens as generated (None: tokenise the content)."""

    role: str
    content: str
    ids: list[int] | None = None

    @property
    def message(self) -> Message:
        return {"role": self.role, "content": self.content}


class TextCodec:
    """Turns ↔ token ids for one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        tokens = bundle.manifest.tokens
        self.eos = frozenset(tokens.eos)
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
        if "chat_template.jinja" in bundle.manifest.files:
            try:
                source = bundle.path("chat_template.jinja").read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BundleError(f"the chat template cannot be read ({error}).") from None
            self.template = ChatTemplate(source, tokens.special)
        # Token ids of the text around replies, which repeats from turn to turn.
        self._system: tuple[list[str], int] | None = None
        self._memo: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text`` alone; special tokens written out in it count as such."""
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        except (TypeError, UnicodeError):
            raise TemplateError("the text to tokenise is not valid Unicode.") from None

    def encode_text(self, text: str) -> Ids:
        """Tokens of a whole text, with BOS in front where the tokenizer puts it."""
        return self._with_bos(self.encode(text))

    def _encode_behind(self, text: str) -> list[int]:
        """Tokens of ``text`` in the middle of a text: SentencePiece puts a space in front else."""
        anchor = self.encode("x")
        both = self.encode("x" + text)
        return both[len(anchor) :] if both[: len(anchor)] == anchor else self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.tokenizer)

    def prompt(self, turns: Sequence[Turn]) -> Ids:
        """Everything the model should have read before it answers, [n] int64.

        Replies appear as the ids that were generated. BOS stands in front exactly once if the
        template or the tokenizer puts it there.
        """
        if self.template is None:
            raise TemplateError(
                "the bundle has no chat template; export a chat model, or add chat_template.jinja "
                "to the model folder and export again."
            )
        messages = [turn.message for turn in turns]
        pieces = self.template.split(messages)
        if pieces is None:  # the template rewrites replies: tokenise what it says
            return self._with_bos(self.encode(self.template.render(messages)))
        replies = [turn for turn in turns if turn.role == "assistant"]
        memo: dict[str, list[int]] = {}
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            known = self._memo.get(piece)
            encode = self._encode_behind if index else self.encode
            memo[piece] = encode(piece) if known is None else known
            ids += memo[piece]
            if index < len(replies):
                reply = replies[index]
                ids += self.encode(reply.content) if reply.ids is None else reply.ids
        self._memo = memo
        return self._with_bos(ids)

    def system_tokens(self, system: Sequence[Turn]) -> int:
        """How many tokens stand in front of the first message, whatever it says."""
        contents = [turn.content for turn in system]
        if self._system is None or self._system[0] != contents:
            memo = self._memo
            one, other = (self.prompt([*system, Turn("user", text)]) for text in ("a", "b"))
            self._memo = memo
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

    def _with_bos(self, ids: list[int]) -> Ids:
        if self._bos is not None and ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        return np.asarray(ids, dtype=np.int64)
