"""What each token of a conversation is to the cache right now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgechat.runtime.conversation import Conversation

STATES = ("sink", "pinned", "key", "recent", "recalled", "archived", "forgotten", "unread")


@dataclass(frozen=True)
class MappedTurn:
    """One turn: ``pieces`` are (text, state), neighbours of one state joined; see STATES."""

    role: str
    pieces: list[tuple[str, str]]


def map_cache(conversation: Conversation) -> list[MappedTurn]:
    """The system prompt and every turn, template marks left out."""
    c, cache = conversation, conversation.cache
    prompt = c.prompt()
    roles = [turn.role for turn in [*c.system_turns(), *c.turns]]
    count = max(len(prompt.ids), len(c.transcript))
    states = np.full(count, STATES.index("unread"))
    states[: len(c.transcript)] = STATES.index("forgotten")
    if cache.memory is not None:
        archive = cache.memory.archive
        for start, size in zip(archive.starts.tolist(), archive.counts.tolist(), strict=True):
            states[start : start + size] = STATES.index("archived")
    slots = cache.slots
    index = slots.index
    states[index] = STATES.index("key")
    own = index[~slots.recalled]
    gaps = np.flatnonzero(np.diff(own) != 1)
    states[own[gaps[-1] + 1 if len(gaps) else 0 :]] = STATES.index("recent")
    states[index[slots.recalled]] = STATES.index("recalled")
    states[index[slots.pinned]] = STATES.index("pinned")
    states[index[: getattr(cache.policy, "sinks", 0)]] = STATES.index("sink")
    mapped = []
    for role, span in zip(roles, prompt.spans, strict=True):
        pieces: list[tuple[str, str]] = []
        if span is not None:
            start, stop = span
            breaks = np.flatnonzero(np.diff(states[start:stop])) + 1
            for part in np.split(np.arange(start, stop), breaks):
                text = c.codec.decode(prompt.ids[part].tolist())
                pieces.append((text, STATES[states[part[0]]]))
        mapped.append(MappedTurn(role, pieces))
    return mapped
