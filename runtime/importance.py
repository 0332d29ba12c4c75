"""How much a cached token matters: a weighted LRU, as pure functions over numpy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

NEIGHBOURS = 2  # tokens on each side that a span takes in
AHEAD = 8  # tokens a span goes on: what a surprise announces comes behind it
HALF_LIFE = 8192.0  # tokens after which a token counts half
MASS_WEIGHT = 4.0  # nats that one head's whole attention for a moment is worth


def span_sum(values: Floats, index: Ints, neighbours: int = NEIGHBOURS) -> Floats:
    """``values`` [n] summed over the tokens within ``neighbours`` of each, [n].

    ``index`` [n] are places in the transcript; only true neighbours there count.
    """
    total = values.astype(np.float32)
    for distance in range(1, min(neighbours, len(values) - 1) + 1):
        apart = np.abs(index[distance:] - index[:-distance])
        beside = (apart > 0) & (apart <= neighbours)
        total[distance:] += values[:-distance] * beside
        total[:-distance] += values[distance:] * beside
    return total


def importance(
    surprisal: Floats,
    mass: Floats,
    index: Ints,
    age: Ints,
    neighbours: int = NEIGHBOURS,
    half_life: float = HALF_LIFE,
) -> Floats:
    """decay(age) * (surprisal of the span + attention mass of the span), all [n].

    ``surprisal`` in nats, ``mass`` as softmax weight per head, itself decayed by whoever sums it
    up, ``age`` in tokens. Attention mass alone does not keep facts; surprisal spans do.
    """
    single = surprisal + np.float32(MASS_WEIGHT) * np.minimum(mass, np.float32(1))
    worth = span_sum(single.astype(np.float32), index, neighbours)
    result: Floats = worth * np.exp2(-age / np.float32(half_life)).astype(np.float32)
    return result


def select_key_tokens(weights: Floats, threshold: float) -> Mask:
    """The plain rule: tokens whose weight is at least ``threshold`` times the mean, [n]."""
    mask: Mask = weights >= threshold * weights.mean() if len(weights) else np.zeros(0, np.bool_)
    return mask


def select_spans(
    weights: Floats, index: Ints, count: int, behind: int = NEIGHBOURS, ahead: int = AHEAD
) -> Mask:
    """At most ``count`` tokens in whole spans around the heaviest ones, [n].

    A span is a token, ``behind`` tokens in front of it in the transcript and ``ahead`` after it,
    as far as they are among ``index`` [n]. One that does not fit is left out rather than cut.
    """
    chosen = np.zeros(len(weights), dtype=np.bool_)
    left = count
    for center in np.argsort(-weights, kind="stable"):
        if left <= 0:
            break
        near = slice(max(0, center - behind), center + ahead + 1)
        distance = index[near] - index[center]
        span = np.flatnonzero((distance >= -behind) & (distance <= ahead)) + near.start
        new = span[~chosen[span]]
        if chosen[center] or len(new) > left:
            continue
        chosen[new] = True
        left -= len(new)
    return chosen
