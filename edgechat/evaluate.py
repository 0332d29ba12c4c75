"""How well a bundle predicts a text, with any cache policy, and how far it is from another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgechat.assembly import make_engine
from edgechat.bundle import Bundle
from edgechat.errors import SettingsError
from edgechat.runtime.engine import Logits
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.text import TextCodec
from edgechat.settings import Settings

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class Score:
    """``losses``: nats for each predicted token, [n]; the first of a window is not predicted.

    ``kl``: mean divergence KL(reference ‖ bundle) in nats; ``top1``: share of positions where
    both like the same token best. Both are None without a reference.
    """

    losses: Floats
    kl: float | None = None
    top1: float | None = None
    reference_losses: Floats | None = None

    @property
    def reference_perplexity(self) -> float | None:
        losses = self.reference_losses
        return None if losses is None else _exp(losses.mean())

    @property
    def perplexity(self) -> float:
        return _exp(self.losses.mean())

    @property
    def second_half(self) -> float:
        """Perplexity of the later half, where a bounded cache has been evicting for long."""
        return _exp(self.losses[len(self.losses) // 2 :].mean())


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf  # a ruined model, not an error


def read_ids(bundle: Bundle, text: str, most: int | None) -> Ids:
    """The first ``most`` tokens of ``text``; SettingsError when there is nothing to predict."""
    if most is not None:
        text = text[: most * 16]  # no tokenizer averages more characters a token
    ids = TextCodec(bundle).encode_text(text)[:most]
    if len(ids) < 2:
        raise SettingsError("the text has fewer than two tokens; there is nothing to predict.")
    return ids


class Reader:
    """Reads text with one bundle and yields the logits of every position."""

    def __init__(self, bundle: Bundle, settings: Settings, capacity: int) -> None:
        self._policy = settings.make_policy()
        self._engine = make_engine(
            bundle,
            capacity,
            settings.threads,
            self._policy.needs_importance,
            settings.allow_fallback,
        )

    def read(self, ids: Ids) -> Iterator[Logits]:
        """Logits of successive chunks, [S, V], from an empty cache."""
        return KVCache(self._engine, self._policy).feed_chunks(ids, all_logits=True)

    def match(self, other: Reader) -> None:
        """Make both cut texts into the same chunks, so that their logits come in step."""
        alone = self._engine.first_alone or other._engine.first_alone
        self._engine.first_alone = other._engine.first_alone = alone


def evaluate(
    reader: Reader,
    ids: Ids,
    context: int | None = None,
    reference: Reader | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Score:
    """Score ``ids`` [n], as one stream or cut into independent windows of ``context`` tokens.

    With a ``reference`` both read the same chunks side by side. ``progress`` gets the number of
    tokens read.
    """
    if reference is not None:
        reader.match(reference)
    losses, reference_losses, divergences, agreements = [], [], [], []
    size = context or len(ids)
    for start in range(0, len(ids), size):
        window = ids[start : start + size]
        theirs = reference.read(window) if reference else None
        done = 0
        for chunk in reader.read(window):
            targets = window[done + 1 : done + 1 + len(chunk)]
            log_p = _log_softmax(chunk)
            losses.append(-log_p[np.arange(len(targets)), targets].astype(np.float64))
            if theirs is not None:
                log_q = _log_softmax(next(theirs))
                reference_losses.append(-log_q[np.arange(len(targets)), targets].astype(np.float64))
                divergences.append((np.exp(log_q) * (log_q - log_p)).sum(1, dtype=np.float64))
                agreements.append(log_q.argmax(1) == log_p.argmax(1))
            done += len(chunk)
            progress(start + done)
    return Score(
        losses=np.concatenate(losses),
        kl=float(np.concatenate(divergences).mean()) if reference else None,
        top1=float(np.concatenate(agreements).mean()) if reference else None,
        reference_losses=np.concatenate(reference_losses) if reference else None,
    )


def _log_softmax(logits: Logits) -> Logits:
    shifted: Logits = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
