"""What each token of a conversation is to the cache right now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from edgechat.bundle import Bundle
from edgechat.errors import SessionError
from edgechat.runtime.conversation import Conversation
from edgechat.runtime.engine import KV, Signals
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.session_file import UNSOUND, load_state
from edgechat.runtime.state import restore
from edgechat.runtime.text import TextCodec
from edgechat.settings import Settings
from edgechat.validate import build

STATES = ("sink", "pinned", "key", "recent", "recalled", "archived", "forgotten", "unread")
"""sink: first tokens, always kept. pinned: system prompt, pins and last questions, kept. key: old,
kept for its worth. recent: the newest, kept. recalled: came back for the last question. archived:
evicted, can be recalled. forgotten: evicted for good. unread: the next message feeds it."""


@dataclass(frozen=True)
class MappedTurn:
    """One turn: ``pieces`` are (text, state), neighbours of one state joined; ``counts`` are
    tokens by state; see STATES. No pieces where the template hides what the turn says."""

    role: str
    pieces: list[tuple[str, str]]
    counts: dict[str, int] = field(default_factory=dict)


def map_cache(conversation: Conversation) -> list[MappedTurn]:
    """The system prompt and every turn, template marks left out."""
    memory = conversation.cache.memory
    if memory is None:
        return _map(conversation, ())
    archive = memory.archive
    return _map(conversation, zip(archive.starts.tolist(), archive.counts.tolist(), strict=True))


def map_session(bundle: Bundle, path: Path) -> list[MappedTurn]:
    """As ``map_cache`` for what ``Chat.save`` wrote, without loading the model.

    Raises SessionError when the file is missing, damaged or of another bundle.
    """
    state = load_state(path, bundle.identity)
    try:
        settings = build(Settings, state.facts["settings"])
        cache = KVCache(_NoEngine(state.facts["capacity"]), settings.make_policy())
        conversation = Conversation(cache, TextCodec(bundle))
        arrays = state.arrays
        arrays["slots.hidden"] = np.zeros((len(arrays["slots.index"]), 0), np.float32)
        restore(conversation, state)
        archived: list[tuple[int, int]] = []
        if "archive.starts" in arrays:
            starts = arrays["archive.starts"] + arrays["archive.skips"]
            archived = list(zip(starts.tolist(), arrays["archive.counts"].tolist(), strict=True))
        return _map(conversation, archived)
    except UNSOUND as error:
        raise SessionError(f"{path} is no session of this edgechat ({error!r}).") from None


def total_counts(turns: Iterable[MappedTurn]) -> dict[str, int]:
    """Tokens by state, all turns together, in the order of STATES."""
    total: Counter[str] = Counter()
    for turn in turns:
        total.update(turn.counts)
    return {state: total[state] for state in STATES}


def _map(c: Conversation, archived: Iterable[tuple[int, int]]) -> list[MappedTurn]:
    """``archived``: first transcript token and length of each block in the archive."""
    prompt = c.prompt()
    roles = [turn.role for turn in [*c.system_turns(), *c.turns]]
    states = _states(c, archived, max(len(prompt.ids), len(c.transcript)))
    states[c.transcript.common_prefix(prompt.ids) :] = STATES.index("unread")
    mapped = []
    for role, span in zip(roles, prompt.spans, strict=True):
        if span is None:
            mapped.append(MappedTurn(role, []))
            continue
        ids, own = prompt.ids[slice(*span)].tolist(), states[slice(*span)].tolist()
        names = [STATES[state] for state in own]
        mapped.append(MappedTurn(role, _pieces(c.codec, ids, names), dict(Counter(names))))
    return mapped


def _states(c: Conversation, archived: Iterable[tuple[int, int]], count: int) -> NDArray[np.int64]:
    """A place in STATES for each transcript token, [count]."""
    states = np.full(count, STATES.index("forgotten"))
    for start, size in archived:
        states[start : start + size] = STATES.index("archived")
    slots = c.cache.slots
    index = slots.index
    states[index] = STATES.index("key")
    own = index[~slots.recalled]
    gaps = np.flatnonzero(np.diff(own) != 1)
    states[own[gaps[-1] + 1 if len(gaps) else 0 :]] = STATES.index("recent")
    states[index[slots.recalled]] = STATES.index("recalled")
    states[index[slots.pinned]] = STATES.index("pinned")
    states[index[: getattr(c.cache.policy, "sinks", 0)]] = STATES.index("sink")
    return states


def _pieces(codec: TextCodec, ids: list[int], states: list[str]) -> list[tuple[str, str]]:
    """Text by state; a character goes with the token that completes it."""
    pieces: list[tuple[str, str]] = []

    def add(text: str, state: str) -> None:
        if text and pieces and pieces[-1][1] == state:
            pieces[-1] = (pieces[-1][0] + text, state)
        elif text:
            pieces.append((text, state))

    detokenizer = codec.detokenizer()
    for token, state in zip(ids, states, strict=True):
        add(detokenizer.push(token), state)
    if states:
        add(detokenizer.flush(), states[-1])
    return pieces


class _NoEngine:
    """Stands where a KVCache that only tells what it holds has its engine."""

    rows = 1
    vocab_size = hidden_size = 0
    num_heads = 1
    first_alone = False
    moves_keys = True
    signals: Signals | None = None

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def step(self, *_: object) -> NoReturn:
        raise NotImplementedError

    compact = read = sibling = most_tokens = step

    def write(self, row: int, start: int, kv: KV, origin: int) -> None:
        pass

    def close(self) -> None:
        pass
