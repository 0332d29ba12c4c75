"""The system prompt's keys and values, computed once and kept on disk for later starts."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from edgechat.bundle import Bundle
from edgechat.errors import SessionError
from edgechat.paths import cache_folder
from edgechat.runtime.conversation import Conversation
from edgechat.runtime.session_file import UNSOUND, load_state, save_state
from edgechat.runtime.state import capture, restore

KEPT = 8  # prompts whose keys and values stay on disk, those used last


def warm_up(conversation: Conversation, bundle: Bundle) -> bool:
    """Fill the cache with the system prompt, from disk if it is there; True when it was.

    A kept one is used for the same bundle, text and cache only; a damaged one is made anew.
    """
    cache = conversation.cache
    system = conversation.codec.system_ids(conversation.system_turns())
    if not len(system):
        return False
    facts = (bundle.identity, cache.engine.capacity, cache.memory is not None, cache.policy)
    key = hashlib.sha256(repr(facts).encode() + system.tobytes()).hexdigest()[:32]
    path = cache_folder() / "prefill" / f"{key}.safetensors"
    if path.is_file():
        try:
            state = load_state(path, bundle.identity)
            # Another conversation's, which came to the same tokens by other words.
            state.facts.update(system=conversation.system, clock=None)
            restore(conversation, state)
            with suppress(OSError):
                os.utime(path)
            return True
        except (SessionError, *UNSOUND):
            conversation.transcript.truncate(0)
            cache.rewind(0)
    conversation.warm_up()
    with suppress(OSError, SessionError):  # a full or read-only disk costs only the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        save_state(path, capture(conversation), bundle.identity)
        _tidy(path.parent)
    return False


def _tidy(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    for path in files[:-KEPT]:
        path.unlink(missing_ok=True)
