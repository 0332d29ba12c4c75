"""A conversation: turns, transcript and cache kept in step; only the delta is fed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgechat.errors import CapacityError, EdgechatError
from edgechat.runtime.engine import Logits
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.sampling import PENALTY_WINDOW, Sampler
from edgechat.runtime.stop_strings import StopStrings
from edgechat.runtime.text import Ids, TextCodec, Turn
from edgechat.runtime.transcript import Transcript


@dataclass
class Usage:
    """What one reply cost.

    ``fed_tokens``: prompt tokens computed for this turn; ``reused_tokens``: prompt tokens whose
    KV was computed in an earlier turn (evicted since or not); ``evicted_tokens``: slots dropped
    during the turn; ``recalled_tokens``: slots brought back (0: recall is not built yet);
    ``first_token_seconds``: from the call to the first token; ``tokens_per_second``: decode speed
    after the first token, as the reader of the stream sees it.
    """

    fed_tokens: int = 0
    reused_tokens: int = 0
    reply_tokens: int = 0
    evicted_tokens: int = 0
    recalled_tokens: int = 0
    first_token_seconds: float = 0.0
    tokens_per_second: float = 0.0


@dataclass
class Reply:
    """A finished reply. ``finish_reason`` is stop, length or cancelled."""

    text: str
    usage: Usage
    finish_reason: str


@dataclass
class _Generation:
    """A reply in the making."""

    ids: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    finish: str = "cancelled"  # unless generation comes to its own end
    complete: bool = False  # the text shows all of the ids


class Conversation:
    """Not thread-safe, except for ``cancel``."""

    def __init__(self, cache: KVCache, codec: TextCodec, system: str | None = None) -> None:
        self.cache, self.codec = cache, codec
        self.transcript = Transcript()
        self.turns: list[Turn] = []
        self.last: Reply | None = None
        self._cancelled = False
        self._read = 0  # tokens at the front of the next prompt that some turn has read
        self._active: Generator[str, None, None] | None = None
        self.system = system

    def cancel(self) -> None:
        """End the reply in progress after the current step; safe from signals and threads."""
        self._cancelled = True

    def reset(self) -> None:
        """Forget all turns. What the next prompt shares with the old (the system prompt) stays."""
        self.finish()
        self.turns.clear()
        self._read = 0
        self.last = None
        if self.codec.template is not None:
            self.codec.template.restart()

    def stream(
        self, text: str, sampler: Sampler, max_tokens: int, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """Say ``text`` and yield the reply as it is generated; then ``last`` holds the Reply.

        Closing the iterator early, ``cancel`` or the next ``stream`` ends the reply and keeps
        what was generated so far. Raises CapacityError or TemplateError, and then, as when the
        prompt itself is cancelled, no turn is added.
        """
        self.finish()
        self._cancelled = False
        self._active = self._answer(text, sampler, max_tokens, stop)
        return self._active

    def finish(self) -> None:
        """End a reply that its reader left unfinished."""
        if self._active is not None:
            try:
                self._active.close()
            except ValueError:  # Python's word for a generator that runs in another thread
                raise EdgechatError(
                    "another thread is reading a reply; cancel() it and wait for its end."
                ) from None
            self._active = None

    def _answer(
        self, text: str, sampler: Sampler, max_tokens: int, stop: Sequence[str]
    ) -> Generator[str, None, None]:
        started = time.perf_counter()
        question = Turn("user", text)
        prompt = self.codec.prompt([*self._system_turns(), *self.turns, question])
        usage, evicted = Usage(), self.cache.evicted
        logits = self._feed(prompt, usage)
        generation = _Generation()
        try:
            if logits is not None:
                yield from self._generate(
                    logits, sampler, max_tokens, stop, generation, usage, started
                )
        finally:
            reply = "".join(generation.parts)
            if logits is not None:
                ids = generation.ids
                if not generation.complete:  # the model must not remember what nobody saw
                    ids = self.codec.reply_ids(ids, reply)
                self.turns += [question, Turn("assistant", reply, ids)]
            usage.reply_tokens = len(generation.ids)
            usage.evicted_tokens = self.cache.evicted - evicted
            self.last = Reply(reply, usage, generation.finish)

    def _system_turns(self) -> list[Turn]:
        return [] if self.system is None else [Turn("system", self.system)]

    def _feed(self, prompt: Ids, usage: Usage) -> Logits | None:
        """Bring the cache to the end of ``prompt``; returns the logits for the first token."""
        cache = self.cache
        pinned = min(self.codec.system_tokens(self._system_turns()), len(prompt) - 1)
        cache.pin(pinned)
        common = cache.rewind(min(self.transcript.common_prefix(prompt), len(prompt) - 1))
        read_before = min(self._read, len(prompt) - 1)
        self.transcript.truncate(common)
        cache.require_room(len(prompt) - common)
        skipped = 0
        if read_before - common > cache.engine.capacity:  # a long history would be read again
            if common < pinned:
                cache.feed(prompt[common:pinned])
            skipped = cache.skip(read_before)
        logits = cache.feed(prompt[cache.fed :], cancelled=lambda: self._cancelled)
        self.transcript.append(prompt[common : cache.fed])
        usage.reused_tokens, usage.fed_tokens = common, cache.fed - common - skipped
        if logits is not None:
            self._read = len(prompt)
        return logits

    def _generate(
        self,
        logits: Logits,
        sampler: Sampler,
        max_tokens: int,
        stop: Sequence[str],
        out: _Generation,
        usage: Usage,
        started: float,
    ) -> Iterator[str]:
        detokenizer, stops, eos = self.codec.detokenizer(), StopStrings(stop), self.codec.eos
        # The end token closes every turn before; penalising it would make replies run on.
        recent = [i for i in self.transcript.ids[-PENALTY_WINDOW:].tolist() if i not in eos]
        first, finish = 0.0, "length"
        while len(out.ids) < max_tokens:
            token = sampler.sample(logits, recent)
            now = time.perf_counter()
            if not out.ids:
                first, usage.first_token_seconds = now, now - started
            elif now > first:
                usage.tokens_per_second = len(out.ids) / (now - first)
            if token in eos:
                finish = "stop"
                break
            out.ids.append(token)
            recent.append(token)
            shown = stops.push(detokenizer.push(token))
            if shown:
                out.parts.append(shown)
                yield shown
            if stops.found or len(out.ids) == max_tokens:
                break
            if self._cancelled:
                finish = "cancelled"
                break
            try:
                logits = self.cache.feed_one(token)
            except CapacityError:
                break  # the policy evicts nothing and the cache is full
            self.transcript.append(np.asarray([token]))
        rest = "" if stops.found else stops.push(detokenizer.flush())
        rest += "" if stops.found else stops.flush()
        if rest:
            out.parts.append(rest)
            yield rest
        out.complete = not stops.found
        out.finish = "stop" if stops.found else finish
