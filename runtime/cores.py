"""How many processor cores there are for us."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores this process may run on; containers often see fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
