"""A signal in a held block waits for its end, and hides no error."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from edgechat.chat import Chat
from edgechat.cli.signals import Signals
from edgechat.errors import SessionError


def test_a_signal_in_a_held_block_ends_the_program_after_it(tiny_bundle: Path) -> None:
    done = False
    with Chat.open(tiny_bundle) as chat, Signals(chat) as signals:
        with pytest.raises(SystemExit) as ended, signals.held():
            os.kill(os.getpid(), signal.SIGTERM)
            done = True
        assert done and ended.value.code == 128 + signal.SIGTERM
        with pytest.raises(SystemExit):
            signals.leave()


def test_an_error_in_a_held_block_is_not_hidden(tiny_bundle: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Chat.open(tiny_bundle) as chat, Signals(chat) as signals:
        with pytest.raises(SessionError, match="full"), signals.held():
            os.kill(os.getpid(), signal.SIGTERM)
            raise SessionError("the disk is full.")
        assert signal.getsignal(signal.SIGINT) is before


def test_a_save_that_fails_after_a_signal_says_so(
    edgechat: list[str], endless: Path, tmp_path: Path
) -> None:
    session = tmp_path / "a.session"
    small = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1024, 1024)); "
    command = [edgechat[0], "-c", small + edgechat[-1], "run", str(endless), "--prompt", "a"]
    with subprocess.Popen(
        [*command, "-n", "1000000", "--recall-blocks", "0", "--session", str(session)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"error: the session could not be saved" in err and b"Traceback" not in err
    assert list(tmp_path.iterdir()) == []
