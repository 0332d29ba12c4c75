"""Ends a reply at the first stop string, which itself is never shown."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds text back while it may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The part of the text so far that is safe to show; sets ``found`` at a stop string."""
        if not self._stops:
            return text
        text = self._held + text
        cuts = [at for s in self._stops if (at := text.find(s)) >= 0]
        if cuts:
            self.found, self._held = True, ""
            return text[: min(cuts)]
        keep = max(self._overlap(text, s) for s in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of ``text`` that begins ``stop``."""
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                return size
        return 0
