"""Signals end a reply or the program, but never in the middle of a step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from edgechat.chat import Chat

ENDING = ("SIGTERM", "SIGHUP")  # SIGHUP: the terminal went away; Windows has none


class Signals:
    """While open, SIGTERM and SIGHUP leave through SystemExit(128 + number), so that a session is
    saved. In a ``held`` block they wait for its end and cancel the reply in progress."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._before: dict[int, Any] = {}
        self._held = self._interrupted = False
        self.ending: int | None = None

    def __enter__(self) -> Signals:
        for name in ENDING:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """For a reply and for saving. Ctrl-C cancels the reply; a second one also ends the
        program, once the step in progress is done."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        self._held, self._interrupted = True, False
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            self._held = False
        self.leave()  # not above: an error of the block is the better reason to end

    def leave(self) -> None:
        """SystemExit when a signal has come that ends the program."""
        if self.ending is not None:
            raise SystemExit(128 + self.ending)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            self.ending = number
        self._interrupted = True
        self._chat.cancel()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.ending = number
        self._chat.cancel()
        if not self._held:
            raise SystemExit(128 + number)
