"""The commands as a user runs them."""

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
from pathlib import Path

import pytest

EDGECHAT = [sys.executable, "-c", "from edgechat.cli import main; main()"]


def run(*args: str | Path, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*EDGECHAT, *map(str, args)], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_export_inspect_run(tiny_folder: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    done = run("export", tiny_folder, "--int8", "-o", bundle, "--capacity", "128")
    assert done.stdout == ""
    plan = json.loads(run("inspect", bundle, "--json", "--window", "60").stdout)
    assert plan["max_capacity"] == 128
    assert plan["memory_plan"]["kv_bytes_at_capacity"] == 64 * 2 * 3 * 2 * 16 * 4
    assert "Graph contract" in run("inspect", bundle).stdout
    options = ["-n", "5", "--seed", "1", "--temp", "1"]
    two = run("run", bundle, "--prompt", "a", "--prompt", "b", "--json", *options).stdout
    replies = [json.loads(line) for line in two.splitlines()]
    assert len(replies) == 2
    assert replies[1]["usage"]["reused_tokens"] > 0
    piped = run("run", bundle, *options, stdin="a\n")
    assert piped.stdout == replies[0]["text"] + "\n"
    assert "fed" in run("run", bundle, "--stats", *options, stdin="a").stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["export", "nowhere"], "does not exist"),
        (["export", "FOLDER", "--int8", "-p", "fp32"], "contradict"),
        (["export", "FOLDER", "-p", "int3"], "int3"),
        (["export", "FOLDER", "--capacity", "1"], "capacity"),
        (["run", "nowhere"], "does not exist"),
        (["run", "BUNDLE", "--window", "5000"], "--capacity"),
        (["run", "BUNDLE", "--window", "3"], "window"),
        (["run", "BUNDLE", "--sinks", "-1"], "sinks"),
        (["run", "BUNDLE", "--sinks", "1000"], "sinks"),
        (["run", "BUNDLE", "--temp", "-1"], "temperature"),
        (["run", "BUNDLE", "--profile", "nobody"], "'nobody'"),
        (["run", "BUNDLE", "--policy", "magic"], "'magic'"),
        (["run", "BUNDLE", "-n", "-1"], "max tokens"),
        (["run", "BUNDLE", "--threads", "0"], "threads"),
        (["inspect", "FOLDER"], "no bundle"),
    ],
)
def test_errors_are_one_sentence(
    args: list[str], message: str, tiny_folder: Path, tiny_bundle: Path
) -> None:
    places = {"FOLDER": str(tiny_folder), "BUNDLE": str(tiny_bundle)}
    done = run(*(places.get(a, a) for a in args), stdin="x", code=1)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_reader_that_goes_away(tiny_bundle: Path) -> None:
    command = " ".join(["exec", *(f"'{a}'" for a in EDGECHAT), "run", f"'{tiny_bundle}'"])
    done = subprocess.run(
        ["bash", "-c", f"({command} --prompt a --prompt b --prompt c -n 50) | head -c 1"],
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr


class Terminal:
    """edgechat run in a pseudo terminal."""

    def __init__(self, *args: str | Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(EDGECHAT[0], [*EDGECHAT, *map(str, args)])
        self._unread = ""

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

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    endless = Path(shutil.copytree(tiny_bundle, tmp_path / "endless"))
    manifest = json.loads((endless / "edgechat.json").read_text())
    manifest["tokens"]["eos"] = [300]  # an embedding row without a token: never drawn
    (endless / "edgechat.json").write_text(json.dumps(manifest))
    t = Terminal("run", endless, "-n", "1000000", "--stats")
    t.wait_for("> ")
    return t


def test_interactive_commands(terminal: Terminal) -> None:
    terminal.type("/help\n")
    assert "Ctrl-C" in terminal.wait_for("> ")
    terminal.type("/nonsense\n")
    assert "unknown command" in terminal.wait_for("> ")
    terminal.type("/system You are a cat.\n")
    assert "cat" in terminal.wait_for("\r\n> ")
    terminal.type("/reset\n")
    assert "forgotten" in terminal.wait_for("> ")
    terminal.type("/exit\n")
    assert terminal.exit_code() == 0


def test_ctrl_c_stops_the_reply_and_keeps_the_chat(terminal: Terminal) -> None:
    terminal.type('"""two\nlines"""\n')
    terminal.wait_for("\n. ")
    time.sleep(1.0)
    os.kill(terminal.pid, signal.SIGINT)
    assert "[stopped]" in terminal.wait_for("[fed")
    terminal.wait_for("> ")
    terminal.type("/stats\n")
    assert "reused 0" in terminal.wait_for("cache")
    terminal.type("\x04")
    assert terminal.exit_code() == 0
