"""Run the slow preparatory commands: a line of progress each, their output in a log file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_LINES = 30


class StepFailed(RuntimeError):
    """A preparatory command failed; the message ends with what it printed last."""


def say(text: str, end: str = "\n") -> None:
    """Progress goes to stderr: stdout is for the result."""
    print(text, end=end, file=sys.stderr, flush=True)


def run_logged(
    title: str,
    command: Sequence[str],
    logs: Path,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a command to its end, or raise with the tail of its log."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / (re.sub(r"[^a-z0-9.]+", "-", title.lower())[:60] + ".log")
    say(f"  {title} ... ", end="")
    start = time.perf_counter()
    with log.open("w") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(variables or {})},
            check=False,
        )
    if done.returncode:
        say("failed")
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        raise StepFailed(f"{title} failed ({done.returncode}), see {log}\n{tail}")
    say(f"{time.perf_counter() - start:.0f} s")
