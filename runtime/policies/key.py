"""Sinks + key tokens + recent window: the middle keeps what was surprising when it was read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgechat.runtime.importance import importance, select_spans
from edgechat.runtime.policies.base import Kept, must_keep
from edgechat.runtime.slots import SlotTable


@dataclass(frozen=True)
class Key:
    """Keep sinks and pins, ``keys`` tokens in spans of the highest importance, and the newest."""

    sinks: int
    keys: int
    evicts: bool = True
    needs_importance: bool = True

    def __call__(self, slots: SlotTable, budget: int) -> Kept:
        kept = must_keep(slots, self.sinks)
        free = np.flatnonzero(~kept)
        left = max(0, budget - int(kept.sum()))
        keys = min(self.keys, left // 2)
        old, recent = np.split(free, [max(0, len(free) - (left - keys))])
        now = int(slots.used.max()) if len(slots.used) else 0
        weights = importance(
            slots.surprisal[old], slots.mass[old], slots.index[old], now - slots.used[old]
        )
        kept[recent] = True
        kept[old[select_spans(weights, slots.index[old], keys)]] = True
        return np.flatnonzero(kept)
