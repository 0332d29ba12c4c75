"""One conversation's bounded KV cache: feeds tokens, evicts in chunks, recalls, rewinds, edits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.bundle import SURPRISAL_IDS
from edgechat.errors import ArchiveError, CapacityError
from edgechat.runtime.engine import Engine, Logits
from edgechat.runtime.importance import HALF_LIFE
from edgechat.runtime.memory import Memory
from edgechat.runtime.policies import Policy
from edgechat.runtime.slots import Ranges, SlotTable, inside

Ids = NDArray[np.int64]
PREFILL_CHUNK = 256  # tokens: a CPU's fastest; longer steps waste attention above the diagonal
EVICT_CHUNK = 256  # slots a compaction frees; perplexity does not see the difference to 1
FIRST_TOKENS = 4  # of a text: their activations are unlike all others and say nothing
RECALL_DISTANCE = 8  # slots between what is recalled and the turn: adjacent, it is not repeated
READ_AGAIN = 32  # tokens at a question's end that are read once more, behind what was recalled


class KVCache:
    """Keeps the slots of row 0 of ``engine`` in step with a transcript.

    ``fed`` counts the transcript tokens that were fed so far; some of them may be evicted. With a
    ``memory``, what is evicted goes there and can be recalled. ``marks`` are ids that are not text
    (the template's); ``chunk`` is the most tokens a prefill step feeds.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        memory: Memory | None = None,
        marks: frozenset[int] = frozenset(),
        sentence_ends: frozenset[int] = frozenset(),
        chunk: int = PREFILL_CHUNK,
    ) -> None:
        if engine.rows != 1:
            raise ValueError("a KVCache keeps one conversation: it needs an engine with one row")
        self.engine, self.policy, self.memory = engine, policy, memory
        self._chunk = chunk
        self.slots = SlotTable(engine.capacity, engine.hidden_size if memory else 0)
        self.fed = 0
        self.evicted = 0  # slots dropped to make room
        self.lost = 0  # those of them that the archive could not take
        self.pins: Ranges = []
        self.turns: list[int] = []  # transcript indices where turns start: no block crosses one
        self._is_mark, self._is_end = np.zeros((2, engine.vocab_size), dtype=np.bool_)
        self._is_mark[list(marks)] = True
        self._is_end[list(sentence_ends)] = True
        self._evict = max(1, min(EVICT_CHUNK, engine.capacity // 4))
        if not engine.moves_keys:  # what stays is read again: seldom, therefore
            self._evict = max(1, engine.capacity // 2)
        self._lengths = np.zeros(1, dtype=np.int32)
        self._one = np.zeros((1, 1), dtype=np.int64)
        self.logits: Logits | None = None  # [V] after the last token fed, None if not known

    @property
    def room(self) -> int:
        return self.engine.capacity - self.slots.length

    def feed(self, ids: Ids, cancelled: Callable[[], bool] = lambda: False) -> Logits | None:
        """Feed transcript tokens [n], n ≥ 1, in chunks, evicting when the cache is full.

        Returns the logits [V] after the last token, a view the next feed overwrites, or None
        when ``cancelled()`` turned true between chunks (``fed`` says how far it came).
        """
        end = self.fed + len(ids)
        for logits in self.feed_chunks(ids):
            if self.fed == end:
                return np.asarray(logits[-1])
            if cancelled():
                break
        return None

    def feed_chunks(self, ids: Ids, all_logits: bool = False) -> Iterator[Logits]:
        """As ``feed``, yielding each chunk's logits: [1, V], or [S, V] with ``all_logits``."""
        if self.memory is not None:  # what is fed again is archived again
            self.memory.archive.replace(self.fed, self.fed + len(ids), 0)
        done = 0
        while done < len(ids):
            if self.room == 0:
                self.make_room(self._evict)
            count = self._next_chunk(len(ids) - done, all_logits)
            yield self._step(ids[None, done : done + count], all_logits)
            done += count

    def feed_one(self, token: int) -> Logits:
        """Decode step: feed one token, return its logits [V] (a view)."""
        if self.slots.length == self.engine.capacity:
            self.make_room(self._evict)
        self._one[0, 0] = token
        return np.asarray(self._step(self._one, False)[-1])

    @property
    def remembers(self) -> bool:
        """Whether there is anything to recall."""
        return self.memory is not None and len(self.memory.archive) > 0

    def rewind(self, fed: int, keep_archive: bool = False) -> int:
        """Forget the transcript from token ``fed`` on; returns how many tokens remain fed.

        When the token before ``fed`` is no longer cached, the near past is lost: everything is
        dropped, 0 is returned and the caller feeds again what it wants remembered.
        ``keep_archive``: what the archive holds of later tokens is still true.
        """
        if self.memory is not None and not keep_archive:
            self.memory.archive.truncate(fed)
        fed = self._reach(fed)
        self._drop(self.slots.index >= fed)
        if fed == 0:
            self.slots.truncate(0)
        if fed != self.fed:
            self.logits = None
        self.fed = fed
        return fed

    def pin(self, ranges: Ranges) -> None:
        """Never evict these transcript tokens; all others are free again."""
        self.pins = ranges
        self.slots.pin(ranges)
        slots = self.slots  # of a pinned token there may be a copy, of a free one there is one slot
        free = slots.index[~slots.pinned & ~slots.recalled]
        self._drop(slots.recalled & np.isin(slots.index, free))

    def skip(self, end: int) -> int:
        """Take transcript tokens up to ``end`` as fed without reading them; returns
        how many. For history that was read once and would only be evicted again."""
        count = end - self.fed
        if not self.policy.evicts or count <= 0:
            return 0
        self.fed += count
        self.logits = None
        return count

    @property
    def spare(self) -> int:
        """Slots that are free or whose tokens may leave."""
        kept = self.policy(self.slots, 0) if self.policy.evicts else self.slots.index
        return self.engine.capacity - len(kept)

    def require_room(self, count: int) -> None:
        """CapacityError when ``count`` more tokens cannot be fed because nothing may leave."""
        if not self.policy.evicts and count > self.room:
            raise CapacityError(
                f"the message needs {count:,} tokens but the KV cache has room for {self.room:,} "
                "and its policy 'full' evicts nothing; use the policy 'key' or start anew."
            )

    def purge(self) -> None:
        """Drop what was recalled and evict a chunk, so that the next turn need not."""
        if self.policy.evicts:
            self._drop(self.slots.recalled & ~self.slots.pinned)
            self.make_room(self._evict)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """An empty cache without memory for something else; what it held comes back after."""
        slots, kv = self.slots, self.engine.read(0, 0, self.slots.length)
        kept = (self.fed, self.evicted, self.pins, self.turns, self.memory)
        self.slots = SlotTable(self.engine.capacity)
        self.fed, self.pins, self.turns, self.memory = 0, [], [], None
        try:
            yield
        finally:
            self.slots = slots
            self.fed, self.evicted, self.pins, self.turns, self.memory = kept
            self.engine.write(0, 0, kv, 0)
            self.logits = None

    def make_room(self, count: int) -> None:
        """Evict until ``count`` slots are free; CapacityError when too little may leave."""
        if self.room >= count:
            return
        kept = self.policy(self.slots, self.engine.capacity - count)
        if len(kept) > self.engine.capacity - count:
            raise CapacityError(
                f"sinks and pinned text take {len(kept):,} of the KV cache's "
                f"{self.engine.capacity:,} tokens and leave no room for {count:,} more; use a "
                "larger window or pin less."
            )
        gone = np.ones(self.slots.length, dtype=np.bool_)
        gone[kept] = False
        if self.memory is not None:
            try:
                self.memory.store(self.engine, self.slots, gone, self.turns)
            except ArchiveError:  # a full disk must not end the talk: forget, and tell
                self.lost += int((gone & ~self.slots.archived).sum())
        self._drop(gone)
        self.evicted += int(gone.sum())

    def archive_from(self, fed: int) -> None:
        """Give the archive a copy of what ``rewind`` to ``fed`` drops."""
        if self.memory is not None:
            gone = self.slots.index >= self._reach(fed)
            self.memory.store(self.engine, self.slots, gone, self.turns)

    def _reach(self, fed: int) -> int:
        """``fed``, or 0 when the token before is no longer cached."""
        return fed if fed and (self.slots.index == fed - 1).any() else 0

    def splice(self, start: int, stop: int, ids: Ids) -> None:
        """Put ``ids`` in place of transcript tokens ``start`` … ``stop - 1`` and keep what follows.

        The tail's keys are rotated to their new places, but its tokens have read the old text.
        The caller sees to it that the cache has room for ``ids``.
        """
        self._drop(inside(self.slots.index, [(start, stop)]))
        later = np.flatnonzero((self.slots.index >= stop) & ~self.slots.recalled)
        head = int(later[0]) if len(later) else self.slots.length
        fed, shift = self.fed, len(ids) - (stop - start)
        with self._aside(head) as tail:
            self.slots.index[self.slots.index >= stop] += shift  # recalled ones
            self.fed, self.logits = start, None
            if self.memory is not None:
                self.memory.archive.replace(start, stop, shift)
            for _ in self.feed_chunks(ids):
                pass
            for name in ("index", "used"):
                tail[name][tail[name] >= stop] += shift
        self.fed, self.logits = fed + shift, None

    def recall(self, question: tuple[int, int], most: int, turn: int) -> int:
        """Put the archive's ``most`` best blocks for the ``question``, the transcript tokens
        [start, stop) that were fed last, RECALL_DISTANCE slots in front of transcript token
        ``turn``, where its turn starts; returns how many tokens came back.

        What came back helps the question's tokens only if they read it: then its last READ_AGAIN
        are forgotten again, and the caller feeds the transcript from ``fed`` on.
        """
        query = self.text_mean(*question)
        if self.memory is None or query is None:
            return 0
        blocks = self.memory.find(query, most, before=turn)
        self.slots.pin([*self.pins, (turn, self.fed)])  # what is being asked does not make room
        budget = min((self.engine.capacity - (self.fed - turn)) // 2, self.spare)
        total = 0
        for place, block in enumerate(blocks):  # best first
            total += block.stop - block.start
            if total > budget:
                blocks = blocks[:place]
                break
        ranges = [(b.start, b.stop) for b in blocks]
        self._drop(inside(self.slots.index, ranges) & ~self.slots.pinned)
        count = sum(stop - start for start, stop in ranges)
        self.make_room(count)
        here = self.slots.length - int((self.slots.index >= turn).sum())
        with self._aside(min(here, max(FIRST_TOKENS, here - RECALL_DISTANCE))):
            for block in reversed(blocks):  # the best stands nearest to the question
                self.engine.write(0, self.slots.length, block.kv, block.origin)
                new = self.slots.append(block.start, block.stop - block.start)
                self.slots.used[new] = self.fed
                self.slots.token[new] = -1
                self.slots.surprisal[new] = block.surprisal
                self.slots.archived[new] = self.slots.recalled[new] = True
        self.slots.pin(self.pins)
        if count:
            self.rewind(max(question[0], self.fed - READ_AGAIN), keep_archive=True)
        return count

    @contextmanager
    def _aside(self, place: int) -> Iterator[dict[str, NDArray[Any]]]:
        """The slots from ``place`` on are taken out, and put back behind what is there then;
        yields their columns."""
        tail = self.slots.copy(place, self.slots.length)
        kv = self.engine.read(0, place, self.slots.length - place)
        self.slots.truncate(place)
        yield tail
        self.engine.write(0, self.slots.length, kv, place)
        self.slots.extend(tail)

    def text_mean(self, start: int, stop: int) -> NDArray[np.float32] | None:
        """Mean hidden state [E] of the cached text among transcript tokens ``start`` …
        ``stop - 1``; None without any."""
        chosen = inside(self.slots.index, [(start, stop)]) & self.slots.content
        if self.memory is None or not chosen.any():
            return None
        mean: NDArray[np.float32] = self.slots.hidden[chosen].mean(axis=0)
        return mean

    def _next_chunk(self, left: int, all_logits: bool) -> int:
        """Tokens the next step feeds of ``left``."""
        alone = self.slots.length == 0 and self.engine.first_alone
        most = min(self._chunk, self.engine.most_tokens(all_logits))
        return min(left, self.room, 1 if alone else most)

    def _drop(self, gone: NDArray[np.bool_]) -> None:
        if not gone.any():
            return
        kept = np.flatnonzero(~gone)
        still = len(kept) if self.engine.moves_keys else int((kept == np.arange(len(kept))).sum())
        self.engine.compact(0, kept[:still])
        self.slots.keep(kept)
        if still < len(kept):
            self._read_again(still)

    def _read_again(self, start: int) -> None:
        """Feed the tokens of the slots from ``start`` on to the engine, which holds those before.

        They have not read then what was evicted.
        """
        known, logits = self.logits is not None, None
        for place in range(start, self.slots.length, self._chunk):
            self._lengths[0] = place
            tokens = self.slots.token[None, place : place + self._chunk]
            logits = self.engine.step(tokens, self._lengths)[0]
        self.logits = None if logits is None or not known else logits[-1]

    def _step(self, tokens: Ids, all_logits: bool) -> Logits:
        count = tokens.shape[1]
        first = self._surprisal(int(tokens[0, 0]))
        self._lengths[0] = self.slots.length
        logits: Logits = self.engine.step(tokens, self._lengths, all_logits)[0]
        self._note(tokens[0], first)
        self.fed += count
        self.logits = logits[-1]
        return logits

    def _surprisal(self, token: int) -> float:
        """-log p of ``token`` as the next one, as the graph reckons it; 0 where p is not known."""
        logits = self.logits
        if logits is None or not (self.memory is not None or self.policy.needs_importance):
            return 0.0
        common = logits[:SURPRISAL_IDS]
        top = float(common.max())
        partition = top + float(np.log(np.exp(common - top).sum()))
        return max(0.0, partition - float(logits[token]))

    def _note(self, tokens: Ids, first: float) -> None:
        """Enter the tokens that were just fed into the slots."""
        slots, signals = self.slots, self.engine.signals
        new = slots.append(self.fed, len(tokens))
        slots.token[new] = tokens
        if self.pins:
            slots.pinned[new] = inside(slots.index[new], self.pins)
        if signals is None:
            return
        slots.mass[:] *= 0.5 ** (len(tokens) / HALF_LIFE)
        slots.mass[:] += signals.attention_mass[0, : slots.length] / self.engine.num_heads
        slots.surprisal[new.start] = first
        slots.surprisal[new.start + 1 : new.stop] = signals.surprisal[0]
        if self.memory is not None:
            slots.hidden[new] = signals.hidden[0]
            slots.ends[new] = self._is_end[tokens]
            slots.content[new] = ~self._is_mark[tokens] & (slots.index[new] >= FIRST_TOKENS)
