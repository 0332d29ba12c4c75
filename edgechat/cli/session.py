"""``--session``: a conversation that outlives the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from edgechat.chat import Chat
from edgechat.cli.signals import Signals
from edgechat.errors import EdgechatError, SessionError, SettingsError
from edgechat.runtime.session_file import is_session

# Ways to leave that leave a whole conversation behind; any other is a bug, and then the old file is
# worth more than what a torn conversation would make of it.
PROPER_ENDS = (EdgechatError, OSError, SystemExit, KeyboardInterrupt, typer.Exit)


def check_session_path(path: Path) -> None:
    """SettingsError, before a model is loaded for nothing, when ``path`` cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file in it for the session.")
    if not folder.is_dir():
        raise SettingsError(
            f"the session cannot be saved to {path}: there is no folder {folder}; make it first."
        )
    if not os.access(folder, os.W_OK):
        raise SettingsError(
            f"the session cannot be saved to {path}: the folder {folder} is read-only; choose "
            "another."
        )


def check_resumable(path: Path, given: Mapping[str, object]) -> None:
    """SettingsError when an option in ``given`` (None: not given) is one that a conversation
    keeps from its start."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise SettingsError(
            f"{', '.join(names)} cannot change the conversation that {path} goes on with; leave "
            f"{'it' if len(names) == 1 else 'them'} out (the command /system changes the system "
            "prompt) or name a new file."
        )


def save_as(chat: Chat, path: Path) -> None:
    """Save to a file the user named in the conversation; refuses to replace anything but a
    session."""
    check_session_path(path)
    if path.exists() and not is_session(path):
        raise SessionError(f"{path} exists and is no session; choose another name.")
    chat.save(path)


@contextmanager
def kept(chat: Chat, path: Path | None, signals: Signals) -> Iterator[None]:
    """Save to ``path`` when the block is left, however that comes about."""
    if path is None:
        yield
        return
    try:
        yield
    except PROPER_ENDS:
        _save(chat, path, signals)
        raise
    _save(chat, path, signals)


def _save(chat: Chat, path: Path, signals: Signals) -> None:
    with signals.held():
        chat.save(path)
        tell(f"saved {path} ({count_turns(chat)})")


def count_turns(chat: Chat) -> str:
    count = len(chat.history)
    return f"{count:,} turn{'' if count == 1 else 's'}"


def tell(text: str) -> None:
    """A note on stderr, which may be gone together with the terminal."""
    with suppress(OSError):
        print(f"note: {text}", file=sys.stderr, flush=True)
