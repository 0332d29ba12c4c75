"""What every policy offers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgechat.runtime.slots import SlotTable

Kept = NDArray[np.int64]


class Policy(Protocol):
    """``policy(slots, budget)`` returns the ascending slots to keep, at most ``budget``."""

    @property
    def evicts(self) -> bool:
        """False when the policy never drops a slot, so the cache's capacity is the limit."""

    def __call__(self, slots: SlotTable, budget: int) -> Kept: ...
