"""``edgechat run --session`` loses nothing, however it ends; the commands that change a talk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgechat import Chat

Run = Callable[..., subprocess.CompletedProcess[str]]
GREEDY = ["--temp", "0", "-n", "8"]


def replies(done: subprocess.CompletedProcess[str]) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def turns(bundle: Path, session: Path) -> list[tuple[str, str]]:
    with Chat.load(bundle, session) as chat:
        return chat.history


def test_a_resumed_conversation_goes_on_as_if_it_had_not_stopped(
    run: Run, tiny_bundle: Path, tmp_path: Path
) -> None:
    session = tmp_path / "a.session"
    both = run("run", tiny_bundle, "--prompt", "a", "--prompt", "b", "--json", *GREEDY)
    first = run("run", tiny_bundle, "--session", session, "--prompt", "a", "--json", *GREEDY)
    assert f"saved {session} (2 turns)" in first.stderr and "note: resumed" not in first.stderr
    second = run("run", tiny_bundle, "--session", session, "--json", stdin="b\n")
    assert f"resumed {session} (2 turns)" in second.stderr
    assert f"saved {session} (4 turns)" in second.stderr
    (one,), (other,) = replies(first), replies(second)
    assert [r["text"] for r in replies(both)] == [one["text"], other["text"]]
    assert other["usage"]["reused_tokens"] > 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--window", "100", "--system", "s"], "--window, --system"),
        (["--profile", "chat"], "--profile"),
        (["--policy", "full"], "--policy"),
        (["--sinks", "4"], "--sinks"),
        (["--recall-blocks", "0"], "--recall-blocks"),
    ],
)
def test_options_a_resumed_conversation_cannot_take_are_refused(
    options: list[str], named: str, run: Run, tiny_bundle: Path, tmp_path: Path
) -> None:
    session = tmp_path / "a.session"
    with Chat.open(tiny_bundle) as chat:
        chat.save(session)
    before = session.read_bytes()
    done = run("run", tiny_bundle, "--session", session, "--prompt", "b", *options, code=1)
    assert done.stderr.startswith(f"error: {named} cannot change")
    assert len(done.stderr.strip().splitlines()) == 1
    assert session.read_bytes() == before


def test_options_for_this_run_apply_to_a_resumed_conversation(
    run: Run, endless: Path, tmp_path: Path
) -> None:
    session = tmp_path / "a.session"
    run("run", endless, "--session", session, "--prompt", "a", "-n", "2", "--seed", "1")
    options = ["--threads", "1", "--top-k", "1", "-n", "3", "--archive-folder", tmp_path]
    done = run("run", endless, "--session", session, "--prompt", "b", "--json", *options)
    assert replies(done)[0]["usage"]["reply_tokens"] == 3
    with Chat.load(endless, session) as chat:
        assert (chat.settings.threads, chat.settings.max_tokens) == (1, 3)
        assert (chat.settings.sampling.top_k, chat.settings.sampling.seed) == (1, 1)


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere/a.session", "no folder"), (".", "is a folder")]
)
def test_a_path_that_cannot_be_saved_is_refused_before_the_model_loads(
    name: str, message: str, run: Run, tmp_path: Path
) -> None:
    done = run("run", "no-bundle", "--session", tmp_path / name, "--prompt", "a", code=1)
    assert message in done.stderr


def test_a_damaged_session_is_refused_and_kept(run: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    session = tmp_path / "a.session"
    session.write_bytes(b"no session at all" * 9)
    done = run("run", tiny_bundle, "--session", session, "--prompt", "a", code=1)
    assert len(done.stderr.strip().splitlines()) == 1
    assert session.read_bytes() == b"no session at all" * 9


def test_an_error_leaves_what_was_said_before(run: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    session = tmp_path / "a.session"
    options = ["--policy", "full", "--session", session, "-n", "3"]
    run("run", tiny_bundle, *options, "--prompt", "a", "--prompt", "b" * 400, code=1)
    assert [text for role, text in turns(tiny_bundle, session) if role == "user"] == ["a"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_reply_and_saves(
    number: signal.Signals, edgechat: list[str], endless: Path, tmp_path: Path
) -> None:
    session = tmp_path / "a.session"
    command = [*edgechat, "run", str(endless), "--session", str(session), "--prompt", "a"]
    with subprocess.Popen(
        [*command, "-n", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert b"saved" in err and b"Traceback" not in err
    (_, said), (_, reply) = turns(endless, session)
    assert said == "a" and len(reply) >= 1


def test_a_signal_while_standard_input_is_read(
    edgechat: list[str], endless: Path, tmp_path: Path
) -> None:
    session = tmp_path / "a.session"
    with Chat.open(endless) as chat:
        chat.save(session)
    command = [*edgechat, "run", str(endless), "--session", str(session)]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert b"resumed" in process.stderr.readline()
        time.sleep(0.5)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"saved" in err and b"Traceback" not in err


def test_every_way_out_of_a_terminal_saves(
    open_terminal: Callable[..., Any], endless: Path, tmp_path: Path
) -> None:
    ends: list[tuple[str, Callable[[Any], None], int | None]] = [
        ("ctrl-d", lambda t: t.type("\x04"), 0),
        ("exit", lambda t: t.type("/exit\n"), 0),
        ("sigterm", lambda t: os.kill(t.pid, signal.SIGTERM), 128 + signal.SIGTERM),
        ("hang-up", lambda t: t.hang_up(), None),
    ]
    for name, leave, code in ends:
        session = tmp_path / f"{name}.session"
        terminal = open_terminal(endless, "-n", "3", "--session", session)
        terminal.ask("a")
        time.sleep(0.5)  # a signal before readline waits is seen with the next key only
        leave(terminal)
        assert terminal.exit_code() == code or code is None
        assert len(turns(endless, session)) == 2, name


def test_ctrl_c_twice_leaves_and_saves(edgechat: list[str], endless: Path, tmp_path: Path) -> None:
    session = tmp_path / "a.session"
    command = [*edgechat, "run", str(endless), "--session", str(session), "--prompt", "a"]
    with subprocess.Popen(
        [*command, "-n", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"saved" in err and b"Traceback" not in err
    assert len(turns(endless, session)) == 2


def test_commands_change_the_conversation(
    open_terminal: Callable[..., Any], endless: Path, tmp_path: Path
) -> None:
    session = tmp_path / "a.session"
    terminal = open_terminal(endless, "-n", "3", "--session", session, "--system", "s")
    assert "nothing was said" in terminal.ask("/history")
    terminal.ask("first")
    terminal.ask("second")
    shown = terminal.ask("/history")
    assert "1 you   first" in shown and "3 you   second" in shown and "4 model" in shown
    assert "/again" in terminal.ask("/edit 3 other")
    terminal.ask("/again")
    assert "3 you   other" in terminal.ask("/history")
    assert "taken back: other" in terminal.ask("/undo")
    terminal.ask("/pin Ada is seven.")
    terminal.ask("/pin Bea is eight.")
    assert "2 Bea is eight." in terminal.ask("/pins")
    assert "Ada" in terminal.ask("/unpin 1")
    assert "saved" in terminal.ask(f"/save {tmp_path / 'b.session'}")
    shown = terminal.ask("/cache")
    assert "first" in shown and "always kept" in shown
    for bad in ("/edit 9 x", "/edit x", "/pin", "/unpin nobody", "/save", "/save /no/b.session"):
        assert "error: " in terminal.ask(bad)
    terminal.type("/exit\n")
    assert terminal.exit_code() == 0
    for name in ("a.session", "b.session"):
        with Chat.load(endless, tmp_path / name) as chat:
            assert [text for role, text in chat.history if role == "user"] == ["first"]
            assert chat.pins == ["Bea is eight."]


def test_save_replaces_sessions_only(
    open_terminal: Callable[..., Any], endless: Path, tmp_path: Path
) -> None:
    diary = tmp_path / "diary.txt"
    diary.write_text("dear diary")
    terminal = open_terminal(endless, "-n", "3")
    assert "is no session" in terminal.ask(f"/save {diary}")
    assert diary.read_text() == "dear diary"
    for _ in range(2):
        assert "saved" in terminal.ask(f"/save {tmp_path / 'a.session'}")
    os.write(terminal.fd, b"\xff\n")
    assert "error: " in terminal.wait_for("> ")
    assert "always kept" in terminal.ask("/cache")


def test_a_session_is_read_once_and_without_safetensors(tiny_bundle: Path, tmp_path: Path) -> None:
    session = tmp_path / "a.session"
    with Chat.open(tiny_bundle) as chat:
        chat.save(session)
    code = (
        "import sys\n"
        "sys.modules['safetensors'] = None\n"  # as if it were not installed
        "import edgechat.runtime.session_file as s\n"
        "verify, s._verify = s._verify, lambda *a: (print('read'), verify(*a))\n"
        "from edgechat.cli import main\n"
        "main()"
    )
    options = ["--session", str(session), "--prompt", "a", "--top-k", "1", "-n", "1"]
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(tiny_bundle), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("read") == 1
