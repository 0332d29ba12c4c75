"""The command line: ``edgechat export | run | inspect``."""

from __future__ import annotations

import os
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
    except BrokenPipeError:  # the reader of our output has gone; nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
