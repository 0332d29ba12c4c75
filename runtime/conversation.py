"""A conversation: turns, transcript and cache kept in step; only the delta is fed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from edgechat.errors import CapacityError, EdgechatError, SettingsError
from edgechat.runtime.coherence import Coherence, looks_coherent
from edgechat.runtime.engine import Logits
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.reply import Generation, Reply, Usage
from edgechat.runtime.sampling import PENALTY_WINDOW, Sampler
from edgechat.runtime.slots import Ranges
from edgechat.runtime.stop_strings import StopStrings
from edgechat.runtime.summary import evicted_turns, write_summary
from edgechat.runtime.text import Prompt, TextCodec, Turn
from edgechat.runtime.transcript import Transcript
from edgechat.runtime.upkeep import Upkeep


class Conversation:
    """Not thread-safe, except for ``cancel``."""

    def __init__(
        self,
        cache: KVCache,
        codec: TextCodec,
        system: str | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self.cache, self.codec = cache, codec
        self.upkeep = upkeep or Upkeep()
        self.transcript = Transcript()
        self.turns: list[Turn] = []
        self.pins: list[str] = []
        self.summary = ""
        self.summarised = 0  # leading turns that the summary tells
        self.answered = 0
        self.last: Reply | None = None
        self.system = system
        self._cancelled = False
        self.reported = (0, 0)  # slots evicted and lost when the last reply ended
        self._active: Generator[str, None, None] | None = None

    def cancel(self) -> None:
        """End the reply in progress after the current step; safe from signals and threads."""
        self._cancelled = True

    def reset(self) -> None:
        """Forget all turns. What the next prompt shares with the old (the system prompt) stays."""
        self.finish()
        self.turns.clear()
        self._forget_summary(0)
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

    def edit(self, turn: int, text: str) -> None:
        """Change what was said in ``turn`` (a place in ``turns``); takes effect with the next
        message."""
        self.finish()
        if not -len(self.turns) <= turn < len(self.turns):
            raise SettingsError(
                f"there is no turn {turn}: the conversation has {len(self.turns)}, from 0 on."
            )
        self.turns[turn] = Turn(self.turns[turn].role, text)
        self._forget_summary(turn % len(self.turns))

    def undo(self) -> str:
        """Take back the last message and its reply; returns the message."""
        self.finish()
        if len(self.turns) < 2:
            raise SettingsError("there is nothing to undo: nothing was said yet.")
        question = self.turns[-2].content
        del self.turns[-2:]
        self._forget_summary(len(self.turns))
        self.last = None
        return question

    def pin(self, text: str) -> None:
        """Add ``text`` to what the model always has before it; CapacityError if it cannot fit."""
        self.finish()
        self.pins.append(text)
        try:
            self._check_system()
        except EdgechatError:
            self.pins.pop()
            raise

    def unpin(self, text: str) -> None:
        """Take back a ``pin``; SettingsError when there is none of that text."""
        self.finish()
        if text not in self.pins:
            raise SettingsError(f"{text!r} is not pinned.")
        self.pins.remove(text)

    def system_turns(self) -> list[Turn]:
        """The system prompt with pins and summary behind it, as a turn, if there is any."""
        parts = [self.system, *self.pins, self.summary]
        given = [part for part in parts if part]
        if not given and self.system is None:
            return []
        return [Turn("system", "\n".join(given))]

    def prompt(self, more: Sequence[Turn] = ()) -> Prompt:
        """The whole conversation, system turn first, as the model should read it."""
        return self.codec.prompt([*self.system_turns(), *self.turns, *more])

    def warm_up(self) -> None:
        """Read the system prompt before the first message comes."""
        if self.turns or len(self.transcript):
            return
        ids = self.codec.system_ids(self.system_turns())
        if len(ids):
            self.cache.pin([(0, self._check_system())])
            self.cache.feed(ids)
            self.transcript.append(ids)

    def _forget_summary(self, turn: int) -> None:
        """Turns from ``turn`` on are no longer what they were: a summary of them is not true."""
        if self.summarised > turn:
            self.summary, self.summarised = "", 0

    def _answer(
        self, text: str, sampler: Sampler, max_tokens: int, stop: Sequence[str]
    ) -> Generator[str, None, None]:
        started = time.perf_counter()
        question = Turn("user", text)
        self._check_system()
        prompt = self.prompt([question])
        usage = Usage()
        logits = self._feed(prompt, usage)
        generation, coherence = Generation(), None
        retry = self.upkeep.coherence_check == "retry"
        try:
            if logits is not None:
                pieces = self._generate(
                    logits, sampler, max_tokens, stop, generation, usage, started
                )
                if not retry:
                    yield from pieces
                else:  # what is shown cannot be taken back, so it waits for the check
                    for _ in pieces:
                        pass
                coherence = self._check(prompt, generation)
                if retry and not self._cancelled and coherence is not None and not coherence.ok:
                    generation = Generation()
                    logits = self._feed(prompt, usage, again=True)
                    if logits is not None:
                        yield from self._generate(
                            logits, sampler, max_tokens, stop, generation, usage, started
                        )
                        coherence = self._check(prompt, generation)
                elif retry:
                    usage.first_token_seconds = time.perf_counter() - started
                    whole, parts = generation.complete, generation.parts
                    generation.parts, generation.complete = [], False
                    for part in parts:  # whoever stops reading here has not seen the rest
                        generation.parts.append(part)
                        yield part
                    generation.complete = whole
        finally:
            reply = "".join(generation.parts)
            if logits is not None:
                ids = generation.ids
                if not generation.complete:  # the model must not remember what nobody saw
                    ids = self.codec.reply_ids(ids, reply)
                self.turns += [question, Turn("assistant", reply, ids)]
                self.answered += 1
            usage.reply_tokens = len(generation.ids)
            usage.evicted_tokens = self.cache.evicted - self.reported[0]
            usage.lost_tokens = self.cache.lost - self.reported[1]
            self.reported = self.cache.evicted, self.cache.lost
            self.last = Reply(reply, usage, generation.finish, coherence)
        if logits is not None:
            self._keep_up()

    def _check_system(self) -> int:
        """Tokens of the system turn; CapacityError when they leave too little of the cache.

        The summary gives way first, from its beginning.
        """
        count = self.codec.system_tokens(self.system_turns())
        most = self.cache.engine.capacity // 2
        while self.summary and count > most:
            self.summary = self.summary[len(self.summary) // 2 + 1 :].lstrip()
            count = self.codec.system_tokens(self.system_turns())
        if self.cache.policy.evicts and count > most:
            raise CapacityError(
                f"the system prompt and what is pinned take {count:,} tokens, more than half of "
                f"the KV cache of {self.cache.engine.capacity:,}; shorten them or use a larger "
                "window."
            )
        return count

    def _pinned(self, prompt: Prompt, system: int) -> Ranges:
        """Token ranges that stay: the system turn, and the user's last questions while they
        take at most a quarter of the cache."""
        ranges: Ranges = [(0, min(system, len(prompt.ids) - 1))]
        left = self.cache.engine.capacity // 4
        roles = [t.role for t in [*self.system_turns(), *self.turns]] + ["user"]
        spans = [s for s, role in zip(prompt.spans, roles, strict=False) if role == "user" and s]
        for start, stop in spans[::-1][: self.upkeep.pinned_questions]:
            left -= stop - start
            if left < 0:
                break
            ranges.append((start, stop))
        return ranges

    def _feed(self, prompt: Prompt, usage: Usage, again: bool = False) -> Logits | None:
        """Bring the cache to the end of ``prompt``; returns the logits for the first token.

        ``again``: the reply that followed was no good; recall twice as much this time.
        """
        cache, ids = self.cache, prompt.ids
        system = self._check_system()
        question, turn = _question(prompt)
        edit = self._edit(ids, usage)
        common = min(self.transcript.common_prefix(ids), len(ids) - 1)
        read_before = common if edit is None else min(edit[2], len(ids) - 1)
        if again:
            common = min(common, question[1])
        common = cache.rewind(common, edit is not None and not again)
        self.transcript.truncate(common)
        cache.turns = prompt.starts
        cache.pin(self._pinned(prompt, system))
        cache.require_room(len(ids) - common)
        logits: Logits | None = None
        skipped = 0
        try:
            if read_before - common > cache.engine.capacity:  # a long history would be read again
                skipped = self._skip(ids, system, edit, read_before)
            asked, blocks = True, self.upkeep.recall_blocks * (2 if again else 1)
            if cache.remembers and blocks and (cache.fed < question[1] or again):
                stop = min(question[1], len(ids) - 1)
                if cache.fed < stop:
                    asked = cache.feed(ids[cache.fed : stop], self._is_cancelled) is not None
                if cache.fed == stop:
                    usage.recalled_tokens += cache.recall(question, blocks, turn)
                    usage.fed_tokens += stop - cache.fed
            if asked:
                logits = cache.feed(ids[cache.fed :], self._is_cancelled)
        finally:
            self.transcript.truncate(cache.fed)
            self.transcript.append(ids[common : cache.fed])
            if logits is None and cache.memory is not None:  # nobody vouches for what is behind
                cache.memory.archive.truncate(cache.fed)
        usage.fed_tokens += cache.fed - common - skipped
        usage.reused_tokens = max(0, cache.fed - usage.fed_tokens)
        return logits

    def _is_cancelled(self) -> bool:
        return self._cancelled

    def _skip(
        self, ids: np.ndarray, system: int, edit: tuple[int, int, int] | None, read: int
    ) -> int:
        """Pass over what was read before and would be evicted again; returns how many tokens.

        The system turn and what was edited are read.
        """
        cache, skipped = self.cache, 0
        if cache.fed < system:
            cache.feed(ids[cache.fed : system])
        if edit is not None and edit[0] >= cache.fed:
            skipped += cache.skip(edit[0])
            cache.feed(ids[edit[0] : edit[1]])
        return skipped + cache.skip(read - max(cache.room, cache.engine.capacity // 4))

    def _edit(self, ids: np.ndarray, usage: Usage) -> tuple[int, int, int] | None:
        """Where ``ids`` changed what the transcript says in its middle: (start, stop, end of what
        the transcript says) in ``ids``.

        A small change is read in place, and what follows keeps its keys and values.
        """
        cache, edit = self.cache, self.transcript.find_edit(ids)
        # A change of the last reply alone is often the template's: thinking is not kept.
        if edit is None or (cache.turns and edit[0] >= cache.turns[-1]):
            return None
        start, stop, new_stop = edit
        end = len(self.transcript) + new_stop - stop
        changed = max(stop, new_stop) - start
        if (
            changed <= self.upkeep.delta_threshold * len(self.transcript)
            and changed <= min(cache.engine.capacity // 2, cache.spare)
            and cache.policy.evicts
            and cache.engine.moves_keys
        ):
            cache.make_room(new_stop - start)
            cache.splice(start, stop, ids[start:new_stop])
            self.transcript.splice(start, stop, ids[start:new_stop])
            usage.fed_tokens += new_stop - start
        elif cache.memory is not None:
            cache.archive_from(start)  # what follows may be passed over
            cache.memory.archive.replace(start, stop, new_stop - stop)
        return start, new_stop, end

    def _check(self, prompt: Prompt, generation: Generation) -> Coherence | None:
        if self.upkeep.coherence_check == "off":
            return None
        asked = self.cache.pins[1:] or [_question(prompt)[0]]
        return looks_coherent(self.cache, generation.ids, asked, len(prompt.ids))

    def _keep_up(self) -> None:
        """Between turns: what would otherwise delay the next one."""
        interval = self.upkeep.cache_purge_interval
        if interval and self.answered % interval == 0:
            self.cache.purge()
        if self.upkeep.history_summary:
            spans = self.prompt().spans[len(self.system_turns()) :]
            end = evicted_turns(self.cache, spans, self.summarised, self.upkeep.history_summary)
            if end > self.summarised:
                told = self.turns[self.summarised : end]
                self.summary = write_summary(self.cache, self.codec, told, self.summary)
                self.summarised = end
                self._check_system()  # which shortens it

    def _generate(
        self,
        logits: Logits,
        sampler: Sampler,
        max_tokens: int,
        stop: Sequence[str],
        out: Generation,
        usage: Usage,
        started: float,
    ) -> Iterator[str]:
        detokenizer, eos = self.codec.detokenizer(), self.codec.eos
        stops = StopStrings([*self.codec.stops, *stop])
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


def _question(prompt: Prompt) -> tuple[tuple[int, int], int]:
    """The last message's tokens (start, stop), and where its turn starts."""
    span = prompt.spans[-1] if prompt.spans else None
    if span is None:
        end = len(prompt.ids)
        return (end - 1, end), end - 1
    return span, prompt.starts[-2]  # the last one is the reply's to come
