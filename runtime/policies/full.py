"""Never forget: the conversation ends when the cache is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from edgechat.errors import CapacityError
from edgechat.runtime.slots import SlotTable


@dataclass(frozen=True)
class Full:
    """Raises CapacityError instead of evicting."""

    evicts: bool = False
    needs_importance: bool = False

    def __call__(self, slots: SlotTable, budget: int) -> NoReturn:
        raise CapacityError(
            f"the KV cache is full ({slots.length:,} tokens) and the policy 'full' evicts "
            "nothing; use the policy 'key' or start anew."
        )
