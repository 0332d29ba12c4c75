"""Where edgechat keeps files of its own."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/edgechat`` or ``~/.cache/edgechat``: fetched models, line history."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgechat"
