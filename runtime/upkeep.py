"""What a conversation does besides answering."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Upkeep:
    """A profile's fields of the same names.

    ``recall_blocks``: archived blocks put back for a question; ``pinned_questions``: the user's
    last messages that are never evicted; ``delta_threshold``: share of the conversation that an
    edit may change for what follows it to stay as it is; ``cache_purge_interval``: turns between
    purges, 0 for none; ``coherence_check``: off, report or retry; ``history_summary``: tokens of
    turns that are summarised together once they were evicted, 0 for none.
    """

    recall_blocks: int = 0
    pinned_questions: int = 3
    delta_threshold: float = 0.0
    cache_purge_interval: int = 0
    coherence_check: str = "off"
    history_summary: int = 0
