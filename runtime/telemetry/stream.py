"""A program that prints a line about the device every second, and its latest line."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from edgechat.runtime.telemetry.reading import Reading

FRESH = 5.0  # seconds after which a line says nothing about now
LONGEST = 1 << 16  # characters of a line


class Stream:
    """Runs ``command`` until ``close`` and parses what it prints.

    It is started without a shell and in a session of its own, so that Ctrl-C in the terminal does
    not end it. A program that ends by itself just has nothing more to say. OSError when it cannot
    be started.
    """

    def __init__(self, command: Sequence[str], parse: Callable[[str], Reading]) -> None:
        self._parse = parse
        self._latest: tuple[float, Reading] | None = None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._follow, name=command[0], daemon=True)
        self._thread.start()

    @property
    def latest(self) -> Reading:
        """The newest line's reading; empty before the first one and when it is old."""
        latest = self._latest
        if latest is None or time.monotonic() - latest[0] > FRESH:
            return Reading()
        return latest[1]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(2)

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            while line := lines.readline(LONGEST):
                self._latest = time.monotonic(), self._parse(line)


def is_installed(command: Sequence[str]) -> bool:
    return shutil.which(command[0]) is not None
