"""Attention sinks + recent window (StreamingLLM, arXiv 2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgechat.runtime.policies.base import Kept, must_keep
from edgechat.runtime.slots import SlotTable


@dataclass(frozen=True)
class Window:
    """Keep the first ``sinks`` slots, what is pinned, and the newest of the rest."""

    sinks: int
    evicts: bool = True
    needs_importance: bool = False

    def __call__(self, slots: SlotTable, budget: int) -> Kept:
        kept = must_keep(slots, self.sinks)
        free = np.flatnonzero(~kept)
        left = max(0, budget - int(kept.sum()))
        kept[free[max(0, len(free) - left) :]] = True
        return np.flatnonzero(kept)
