"""Attention sinks + recent window (StreamingLLM, arXiv 2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgechat.runtime.policies.base import Kept
from edgechat.runtime.slots import SlotTable


@dataclass(frozen=True)
class Window:
    """Keep the first ``sinks`` slots, or all that are pinned, and the newest of the rest."""

    sinks: int
    evicts: bool = True

    def __call__(self, slots: SlotTable, budget: int) -> Kept:
        length = slots.length
        if length <= budget:
            return np.arange(length)
        sinks = min(max(self.sinks, slots.pinned), budget)
        recent = np.arange(length - (budget - sinks), length)
        return np.concatenate([np.arange(sinks), recent])
