"""The command line; each command is a module, ``app`` puts them together."""

from __future__ import annotations

import io
import sys

from edgechat.errors import EdgechatError


def main() -> None:
    """Entry point: turns edgechat's own errors into one sentence and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no emoji shows "?"
    try:
        from edgechat.cli.app import app

        app()
    except EdgechatError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # such as standard output on a full disk
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
