"""Everything a conversation is made of, as plain data: for session files and forks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.runtime.archive import BLOCK
from edgechat.runtime.conversation import Conversation
from edgechat.runtime.engine import KV
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.memory import Memory
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
        "lost": cache.lost,
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

    Raises KeyError, TypeError or ValueError when the state is not one, and then nothing has
    changed.
    """
    c, cache, facts, arrays = conversation, conversation.cache, state.facts, state.arrays
    _check_facts(facts, max(c.codec.size, cache.engine.vocab_size))
    _check_cache(cache, facts, arrays, max(c.codec.size, cache.engine.vocab_size))
    clock = None if facts["clock"] is None else datetime.fromisoformat(facts["clock"])
    tables: dict[str, dict[str, NDArray[Any]]] = {"archive": {}, "topics": {}}
    records = iter(state.records)
    if cache.memory is not None:
        for name, array in arrays.items():
            part, _, column = name.partition(".")
            if part in tables:
                tables[part][column] = array
        _check_memory(cache.memory, tables, facts["fed"])
        first = next(records, None)
        if first is not None:
            archive = cache.memory.archive
            _check(first.shape == archive.shape and first.dtype == archive.dtype, "records")
            records = chain([first], records)
    c.system, c.pins, c.summary = facts["system"], list(facts["pins"]), facts["summary"]
    c.turns = [Turn(t["role"], t["content"], t["ids"]) for t in facts["turns"]]
    c.summarised, c.answered = facts["summarised"], facts["answered"]
    if c.codec.template is not None and clock is not None:
        c.codec.template.clock = clock
    c.transcript = Transcript(arrays["transcript"])
    cache.slots.truncate(0)
    cache.slots.extend({name: arrays[f"slots.{name}"] for name in SlotTable.COLUMNS})
    cache.engine.write(0, 0, arrays["kv"], 0)
    cache.fed, cache.evicted, cache.lost = facts["fed"], facts["evicted"], facts["lost"]
    c.reported = cache.evicted, cache.lost
    cache.pins = [(start, stop) for start, stop in facts["pinned"]]
    cache.turns = list(facts["starts"])
    cache.logits = arrays["logits"].copy() if "logits" in arrays else None
    if cache.memory is not None:
        cache.memory.restore(tables, records)


def _check(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} of the conversation cannot be right")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value == value.encode("utf-8", "ignore").decode("utf-8")


def _are_counts(*values: object, below: int = 1 << 62) -> bool:
    return all(type(value) is int and 0 <= value < below for value in values)


def _check_facts(facts: dict[str, Any], vocab: int) -> None:
    """ValueError unless all are of their kind; token ids are below ``vocab``."""
    _check(facts["system"] is None or _is_text(facts["system"]), "the system prompt")
    _check(isinstance(facts["pins"], list) and all(map(_is_text, facts["pins"])), "the pins")
    _check(_is_text(facts["summary"]), "the summary")
    turns = facts["turns"]
    _check(isinstance(turns, list) and len(turns) % 2 == 0, "the turns")
    for number, turn in enumerate(turns):
        role, ids = ("user", "assistant")[number % 2], turn["ids"]
        _check(turn["role"] == role and _is_text(turn["content"]), f"turn {number}")
        _check(
            ids is None or (isinstance(ids, list) and _are_counts(*ids, below=vocab)),
            f"turn {number}",
        )
    for name in ("answered", "fed", "evicted", "lost"):
        _check(_are_counts(facts[name]), name)
    _check(_are_counts(facts["summarised"], below=len(turns) + 1), "summarised")
    _check(all(_are_counts(start, stop) for start, stop in facts["pinned"]), "pinned")
    _check(isinstance(facts["starts"], list) and _are_counts(*facts["starts"]), "starts")


def _check_cache(
    cache: KVCache, facts: dict[str, Any], arrays: dict[str, NDArray[Any]], vocab: int
) -> None:
    """ValueError unless slots, keys and values fit each other, the transcript and the engine."""
    fed, ids, count = facts["fed"], arrays["transcript"], len(arrays["slots.index"])
    _check(ids.dtype == np.int64 and ids.shape == (fed,), "the transcript")
    _check(((ids >= 0) & (ids < vocab)).all(), "the transcript")
    _check(count <= cache.slots.capacity, "the slots")
    for name, column in cache.slots.copy(0, 0).items():
        given = arrays[f"slots.{name}"]
        _check(given.dtype == column.dtype and given.shape == (count, *column.shape[1:]), name)
    index, used = arrays["slots.index"], arrays["slots.used"]
    tokens = arrays["slots.token"]
    _check(((tokens >= -1) & (tokens < vocab)).all(), "the slots")
    _check(((index >= 0) & (index < fed)).all() and (used >= 0).all(), "the slots")
    if not cache.engine.vocab_size:  # a stand-in, which neither reads nor writes
        return
    kv, like = arrays["kv"], cache.engine.read(0, 0, 0)
    shape = (*like.shape[:3], count, *like.shape[4:])
    _check(kv.dtype == like.dtype and kv.shape == shape, "the keys and values")
    if "logits" in arrays:
        logits = arrays["logits"]
        _check(
            logits.dtype.kind == "f" and logits.shape == (cache.engine.vocab_size,), "the logits"
        )


def _check_memory(memory: Memory, tables: dict[str, dict[str, NDArray[Any]]], fed: int) -> None:
    """ValueError unless the tables are such as ``memory`` gives, of tokens before ``fed``."""
    given, size = tables["archive"], len(tables["archive"]["starts"])
    for part, like in memory.tables().items():
        _check(tables[part].keys() == like.keys(), f"the {part}")
        for name, column in like.items():
            array = tables[part][name]
            _check(array.dtype == column.dtype and array.ndim == column.ndim, f"{part}.{name}")
            if name != "basis":  # of which there is none at first
                shape = (size, *column.shape[1:]) if part == "archive" else column.shape
                _check(array.shape == shape, f"{part}.{name}")
    starts, counts, skips = (given[name] for name in ("starts", "counts", "skips"))
    for column in (counts, skips, given["origins"]):
        _check((column >= 0).all(), "the archive")
    _check((skips <= BLOCK).all() and (counts <= BLOCK - skips).all(), "the archive")
    _check((starts >= -skips).all() and (starts <= fed - skips - counts).all(), "the archive")
    basis = tables["topics"]["basis"]
    _check(len(basis) == len(tables["topics"]["sum"]) >= basis.shape[1], "the topics")
    _check((tables["topics"]["count"] >= 0).all(), "the topics")
