"""Everything a conversation is made of, as plain data: for session files and forks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.runtime.conversation import Conversation
from edgechat.runtime.engine import KV
from edgechat.runtime.slots import SlotTable
from edgechat.runtime.text import Turn
from edgechat.runtime.transcript import Transcript


@dataclass
class State:
    """``facts`` are JSON values, ``arrays`` are named, ``records`` are the archive's blocks, read
    one at a time ([layers, 2, H, BLOCK, D] each)."""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    records: Iterable[KV]


def capture(conversation: Conversation) -> State:
    """The state as it is now; arrays and records may be views, valid until the next turn."""
    conversation.finish()
    c, cache, template = conversation, conversation.cache, conversation.codec.template
    facts = {
        "system": c.system,
        "turns": [dataclasses.asdict(turn) for turn in c.turns],
        "pins": c.pins,
        "summary": c.summary,
        "summarised": c.summarised,
        "answered": c.answered,
        "clock": None if template is None else template.clock.isoformat(),
        "fed": cache.fed,
        "evicted": cache.evicted,
        "pinned": cache.pins,
        "starts": cache.turns,
    }
    arrays: dict[str, NDArray[Any]] = {
        "transcript": c.transcript.ids,
        "kv": cache.engine.read(0, 0, cache.slots.length),
    }
    for name in SlotTable.COLUMNS:
        arrays[f"slots.{name}"] = getattr(cache.slots, name)
    if cache.logits is not None:
        arrays["logits"] = np.asarray(cache.logits)
    records: Iterable[KV] = ()
    if cache.memory is not None:
        for part, table in cache.memory.tables().items():
            arrays.update({f"{part}.{name}": column for name, column in table.items()})
        records = cache.memory.archive.records()
    return State(facts, arrays, records)


def restore(conversation: Conversation, state: State) -> None:
    """Bring a new ``conversation`` to ``state``; its cache must have the state's capacity.

    Raises KeyError, TypeError or ValueError when the state is not one.
    """
    c, cache, facts, arrays = conversation, conversation.cache, state.facts, state.arrays
    c.system, c.pins, c.summary = facts["system"], list(facts["pins"]), facts["summary"]
    c.turns = [Turn(t["role"], t["content"], t["ids"]) for t in facts["turns"]]
    c.summarised, c.answered = facts["summarised"], facts["answered"]
    if c.codec.template is not None and facts["clock"] is not None:
        c.codec.template.clock = datetime.fromisoformat(facts["clock"])
    c.transcript = Transcript(arrays["transcript"])
    cache.slots.truncate(0)
    cache.slots.extend({name: arrays[f"slots.{name}"] for name in SlotTable.COLUMNS})
    cache.engine.write(0, 0, arrays["kv"], 0)
    cache.fed, cache.evicted = facts["fed"], facts["evicted"]
    cache.pins = [(start, stop) for start, stop in facts["pinned"]]
    cache.turns = list(facts["starts"])
    cache.logits = arrays["logits"].copy() if "logits" in arrays else None
    if cache.memory is not None:
        tables: dict[str, dict[str, NDArray[Any]]] = {"archive": {}, "topics": {}}
        for name, array in arrays.items():
            part, _, column = name.partition(".")
            if part in tables:
                tables[part][column] = array
        cache.memory.restore(tables, state.records)
