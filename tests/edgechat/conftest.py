"""The command line as a user has it: in a process of its own, and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EDGECHAT = [sys.executable, "-c", "from edgechat.cli import main; main()"]


@pytest.fixture(scope="session")
def edgechat() -> list[str]:
    """The command, to which arguments are added."""
    return EDGECHAT


@pytest.fixture(scope="session")
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs edgechat with arguments, ``stdin`` and the exit ``code`` to expect."""

    def run(*args: str | Path, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*EDGECHAT, *map(str, args)], input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def endless(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose replies never come to an end of their own."""
    folder = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("bundles") / "endless"))
    manifest = json.loads((folder / "edgechat.json").read_text())
    manifest["tokens"]["eos"] = [300]  # an embedding row without a token: never drawn
    (folder / "edgechat.json").write_text(json.dumps(manifest))
    return folder


class Terminal:
    """edgechat in a pseudo terminal."""

    def __init__(self, *args: str | Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(EDGECHAT[0], [*EDGECHAT, *map(str, args)])
        self._unread = ""
        self._code: int | None = None

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Read until ``text`` appears; returns what came up to it since the last call."""
        end = time.monotonic() + seconds
        while text not in self._unread:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self._unread!r}"
            self._unread += os.read(self.fd, 65536).decode(errors="replace")
        before, self._unread = self._unread.split(text, 1)
        return before + text

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def ask(self, line: str) -> str:
        """Type a line; returns what is shown until the next prompt."""
        self.type(line + "\n")
        self.wait_for("\n")  # the line itself, echoed
        return self.wait_for("> ")

    def hang_up(self) -> None:
        """The terminal goes away."""
        os.close(self.fd)
        self.fd = -1

    def exit_code(self, seconds: float = 60) -> int:
        """How the program ended; it is killed when it does not."""
        end = time.monotonic() + seconds
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            else:
                time.sleep(0.02)
        return self._code


@pytest.fixture
def open_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Terminal]]:
    """Opens terminals with edgechat run in them, at their first prompt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened: list[Terminal] = []

    def make(*args: str | Path) -> Terminal:
        terminal = Terminal("run", *args)
        opened.append(terminal)
        terminal.wait_for("> ")
        return terminal

    yield make
    for terminal in opened:
        if terminal.fd >= 0:
            terminal.hang_up()
        terminal.exit_code()
