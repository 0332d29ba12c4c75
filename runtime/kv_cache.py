"""One conversation's bounded KV cache: feeds tokens, evicts in chunks, rewinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from edgechat.errors import CapacityError
from edgechat.runtime.engine import Engine, Logits
from edgechat.runtime.policies import Policy
from edgechat.runtime.slots import SlotTable

Ids = NDArray[np.int64]
PREFILL_CHUNK = 256  # tokens a step: the fastest; longer ones waste attention above the diagonal
EVICT_CHUNK = 256  # slots a compaction frees; perplexity does not see the difference to 1


class KVCache:
    """Keeps the slots of row 0 of ``engine`` in step with a transcript.

    ``fed`` counts the transcript tokens that were fed so far; some of them may be evicted.
    """

    def __init__(self, engine: Engine, policy: Policy) -> None:
        if engine.rows != 1:
            raise ValueError("a KVCache keeps one conversation: it needs an engine with one row")
        self.engine, self.policy = engine, policy
        self.slots = SlotTable(engine.capacity)
        self.fed = 0
        self.evicted = 0
        self._evict = max(1, min(EVICT_CHUNK, engine.capacity // 4))
        self._lengths = np.zeros(1, dtype=np.int32)
        self._one = np.zeros((1, 1), dtype=np.int64)

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
        done = 0
        while done < len(ids):
            if self.room == 0:
                self._compact()
            most = 1 if self.slots.length == 0 and self.engine.first_alone else PREFILL_CHUNK
            count = min(len(ids) - done, self.room, most)
            yield self._step(ids[None, done : done + count], all_logits)
            done += count

    def feed_one(self, token: int) -> Logits:
        """Decode step: feed one token, return its logits [V] (a view)."""
        if self.slots.length == self.engine.capacity:
            self._compact()
        self._one[0, 0] = token
        return np.asarray(self._step(self._one, False)[-1])

    def rewind(self, fed: int) -> int:
        """Forget the transcript from token ``fed`` on; returns how many tokens remain fed.

        When the token before ``fed`` is no longer cached, the near past is lost: everything is
        dropped, 0 is returned and the caller feeds again what it wants remembered.
        """
        index = self.slots.index
        length = int(np.searchsorted(index, fed))
        if length == 0 or index[length - 1] != fed - 1:
            fed = length = 0
        self.slots.truncate(length)
        self.fed = fed
        return fed

    def pin(self, count: int) -> None:
        """Never evict the first ``count`` tokens of the transcript; CapacityError if too many."""
        if self.policy.evicts and count > self.engine.capacity // 2:
            raise CapacityError(
                f"the system prompt takes {count:,} tokens, more than half of the KV cache of "
                f"{self.engine.capacity:,}; shorten it or use a larger window."
            )
        self.slots.pinned = count

    def skip(self, end: int) -> int:
        """Take transcript tokens as fed and evicted without reading them; returns how many.

        For history up to token ``end`` that was read once and is no longer cached: of what is
        left to feed, all but the newest that the cache has room for would be evicted again.
        """
        count = end - self.room - self.fed
        if not self.policy.evicts or count <= 0:
            return 0
        self.evicted += count
        self.fed += count
        return count

    def require_room(self, count: int) -> None:
        """CapacityError when ``count`` more tokens cannot be fed because nothing may leave."""
        if not self.policy.evicts and count > self.room:
            raise CapacityError(
                f"the message needs {count:,} tokens but the KV cache has room for {self.room:,} "
                "and its policy 'full' evicts nothing; use the policy 'window' or start anew."
            )

    def _step(self, tokens: Ids, all_logits: bool) -> Logits:
        count = tokens.shape[1]
        self._lengths[0] = self.slots.length
        logits: Logits = self.engine.step(tokens, self._lengths, all_logits)[0]
        self.slots.append(self.fed, count)
        self.fed += count
        return logits

    def _compact(self) -> None:
        before = self.slots.length
        kept = self.policy(self.slots, before - self._evict)
        if len(kept) >= before:
            raise CapacityError(
                f"nothing in the KV cache of {before:,} tokens may be evicted; use a larger window."
            )
        self.engine.compact(0, kept)
        self.slots.keep(kept)
        self.evicted += before - len(kept)
