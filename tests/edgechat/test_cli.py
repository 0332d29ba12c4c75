"""The commands as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_export_inspect_run(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    done = run("export", tiny_folder, "--int8", "-o", bundle, "--capacity", "128")
    assert done.stdout == ""
    plan = json.loads(run("inspect", bundle, "--json", "--window", "60").stdout)
    assert plan["max_capacity"] == 128
    (cache,) = [i for i in plan["memory_plan"]["talking"] if i["name"] == "KV cache"]
    assert cache["bytes"] == 64 * 2 * 3 * 2 * 16 * 4
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
        (["run", "BUNDLE", "--recall-blocks", "-1"], "recall_blocks"),
        (["run", "BUNDLE", "--archive-folder", "nowhere"], "nowhere"),
        (["run", "BUNDLE", "-n", "-1"], "max_tokens"),
        (["run", "BUNDLE", "--threads", "0"], "threads"),
        (["inspect", "FOLDER"], "no bundle"),
    ],
)
def test_errors_are_one_sentence(
    args: list[str], message: str, run: Run, tiny_folder: Path, tiny_bundle: Path
) -> None:
    places = {"FOLDER": str(tiny_folder), "BUNDLE": str(tiny_bundle)}
    done = run(*(places.get(a, a) for a in args), stdin="x", code=1)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_reader_that_goes_away(edgechat: list[str], tiny_bundle: Path) -> None:
    command = " ".join(["exec", *(f"'{a}'" for a in edgechat), "run", f"'{tiny_bundle}'"])
    done = subprocess.run(
        ["bash", "-c", f"({command} --prompt a --prompt b --prompt c -n 50) | head -c 1"],
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr


@pytest.fixture
def terminal(endless: Path, open_terminal: Callable[..., Any]) -> Any:
    return open_terminal(endless, "-n", "1000000", "--stats")


def test_interactive_commands(terminal: Any) -> None:
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


def test_ctrl_c_stops_the_reply_and_keeps_the_chat(terminal: Any) -> None:
    terminal.type('"""two\nlines"""\n')
    terminal.wait_for("\n. ")
    time.sleep(1.0)
    os.kill(terminal.pid, signal.SIGINT)
    assert "[stopped]" in terminal.wait_for("[fed")
    terminal.wait_for("> ")
    terminal.type("/stats\n")
    assert "reused 0" in terminal.wait_for("cache")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0
