"""The command line; each command is a module, ``app`` puts them together."""

from __future__ import annotations

import sys

from edgechat.errors import EdgechatError


def main() -> None:
    """Entry point: turns edgechat's own errors into one sentence and exit code 1."""
    from edgechat.cli.app import app

    try:
        app()
    except EdgechatError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
