"""A short summary of turns that were evicted, written by the model itself."""

from __future__ import annotations

from collections.abc import Sequence

from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.text import TextCodec, Turn

LONGEST = 48  # tokens a summary of one span may take
KEPT = 600  # characters of summary that stay; the oldest sentences go first
REQUEST = "Write one short sentence that says what was talked about here:\n\n"


def evicted_turns(
    cache: KVCache, spans: Sequence[tuple[int, int] | None], done: int, least: int
) -> int:
    """How many leading turns may be summarised: beyond ``done``, all that left the cache
    entirely (recalled copies aside) and are not pinned, once they are ``least`` tokens; else
    ``done``."""
    cached = set(cache.slots.index[~cache.slots.recalled].tolist())
    total, end = 0, done
    for number in range(done, len(spans)):
        span = spans[number]
        if span is not None:
            pinned = any(start < span[1] and span[0] < stop for start, stop in cache.pins)
            if pinned or not cached.isdisjoint(range(*span)):
                break
            total += span[1] - span[0]
        end = number + 1
    return end if total >= least else done


def write_summary(cache: KVCache, codec: TextCodec, turns: Sequence[Turn], before: str) -> str:
    """``before`` with a greedy one-sentence summary of ``turns`` behind it.

    The cache is lent for it: what it held is put back afterwards.
    """
    told = "\n".join(f"{turn.role}: {turn.content}" for turn in turns)
    most = cache.engine.capacity // 2
    words = codec.decode(codec.encode(told)[-most:])
    ids = codec.prompt([Turn("user", REQUEST + words)], aside=True).ids
    said: list[int] = []
    with cache.lent():
        logits = cache.feed(ids)
        while logits is not None and len(said) < LONGEST:
            token = int(logits[: codec.size].argmax())
            if token in codec.eos:
                break
            said.append(token)
            logits = cache.feed_one(token)
    sentence = codec.decode(said).strip().split("\n")[0]
    return f"{before} {sentence}".strip()[-KEPT:]
