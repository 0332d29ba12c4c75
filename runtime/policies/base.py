"""What every policy offers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgechat.runtime.slots import SlotTable

Kept = NDArray[np.int64]


class Policy(Protocol):
    """``policy(slots, budget)`` returns the ascending slots to keep, at most ``budget`` unless
    sinks and pins alone are more."""

    @property
    def evicts(self) -> bool:
        """False when the policy never drops a slot, so the cache's capacity is the limit."""

    @property
    def needs_importance(self) -> bool:
        """Whether it looks at surprisal and attention mass."""

    def __call__(self, slots: SlotTable, budget: int) -> Kept: ...


def must_keep(slots: SlotTable, sinks: int) -> NDArray[np.bool_]:
    """The slots no policy drops: the first ``sinks`` and the pinned ones, [length]."""
    kept = slots.pinned.copy()
    kept[:sinks] = True
    return kept
