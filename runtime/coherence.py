"""Does a reply go round in circles, and is it about what was asked?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.slots import Ranges

GRAM = 4  # tokens in a row that are looked for again
LOOP = 0.5  # share of repeated ones from which a reply is a loop
LATEST = 128  # tokens at the end that are looked at: a loop, once begun, goes on


@dataclass(frozen=True)
class Coherence:
    """``repeated``: share of the last runs of 4 tokens that stood in the reply before.
    ``topic``: highest cosine, without what all text shares, of the reply's hidden states with
    those of the last questions, -1 to 1, or None when too little was archived to tell."""

    repeated: float
    topic: float | None

    @property
    def ok(self) -> bool:
        """Neither a loop nor further from the questions than any text is."""
        return self.repeated < LOOP and (self.topic is None or self.topic > 0)


def looks_coherent(
    cache: KVCache, reply: Sequence[int], questions: Ranges, start: int
) -> Coherence:
    """Judge the tokens ``reply``, fed from transcript token ``start`` on."""
    grams = [tuple(reply[i : i + GRAM]) for i in range(max(0, len(reply) - GRAM + 1))]
    known: set[tuple[int, ...]] = set()
    seen = []
    for gram in grams:
        seen.append(gram in known)
        known.add(gram)
    seen = seen[-LATEST:]
    repeated = sum(seen) / len(seen) if seen else 0.0
    said = cache.text_mean(start, cache.fed)
    asked = [m for span in questions if (m := cache.text_mean(*span)) is not None]
    topic = None
    if said is not None and asked and cache.memory is not None and cache.memory.topics.count:
        topic = float(cache.memory.topics.similarity(np.stack(asked), said).max())
    return Coherence(repeated, topic)
