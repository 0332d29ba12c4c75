"""Asks programs and child processes, each for a limited time; what goes wrong is the answer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SECONDS = 60.0  # TensorRT's provider builds an engine even for one addition
# Not what `-m` would do: that looks for modules in the current folder first.
CHILD = (
    "import sys; sys.path[:] = filter(None, sys.path); import edgechat.doctor.child as c; c.main()"
)
# ONNX Runtime: time, severity, place, sometimes another place, status; or Python: place, kind
LOG_HEAD = re.compile(
    r"^.*?(\[[EW]:[^\]]*\](.*\[ONNXRuntimeError\] : \d+ : \w+ :)?|\w+Warning:)\s*"
)
TROUBLE = re.compile(r"error|fail|cannot|not in available", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What a program printed; ``error`` says why there is nothing."""

    text: str = ""
    error: str | None = None
    complaints: str = ""


def run_program(command: Sequence[str], seconds: float = SECONDS) -> Answer:
    """Runs ``command`` without a shell and without input."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(error=f"no answer within {seconds:.0f} s")
    except OSError as error:
        return Answer(error=error.strerror or "cannot be started")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Answer(done.stdout, f"it crashed ({name})", done.stderr)
    if done.returncode:
        why = _first_line(done.stderr) or _first_line(done.stdout)
        failure = f"exit code {done.returncode}" + (f": {why}" if why else "")
        return Answer(done.stdout, failure, done.stderr)
    return Answer(done.stdout, None, done.stderr)


def ask(probe: str, *arguments: str, seconds: float = SECONDS) -> dict[str, Any]:
    """The facts of one probe in ``child``; ``{"error": …}`` when it failed in whatever way."""
    answer = run_program([sys.executable, "-c", CHILD, probe, *arguments], seconds)
    if answer.error is not None:
        return {"error": answer.error}
    try:
        facts = json.loads(answer.text.strip().rpartition("\n")[2])  # libraries print, too
    except ValueError:
        return {"error": "it gave no answer"}
    if facts.pop("fell_back", False):
        return {"error": complaint(answer.complaints) or "ONNX Runtime fell back to the CPU"}
    return dict(facts)


def complaint(log: str) -> str:
    """The first line in which ONNX Runtime says what failed, without the time and place."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in log.splitlines()]
    told = [line for line in lines if TROUBLE.search(line)]
    return LOG_HEAD.sub("", told[0])[:300] if told else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
