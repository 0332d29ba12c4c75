"""Where edgechat keeps files of its own."""

from __future__ import annotations

import os
from pathlib import Path

from edgechat.errors import SettingsError


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/edgechat`` or ``~/.cache/edgechat``: fetched models, line history."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgechat"


def read_text(path: Path) -> str:
    """A text file the user named; SettingsError when it is missing or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text ({error}).") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}).") from None
