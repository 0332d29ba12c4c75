"""Choosing the next token from logits, vectorised over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.errors import EngineError, SettingsError

TAIL = 23.0  # tokens e^-23 below the best weigh together under 1e-5 of any real vocabulary
PENALTY_WINDOW = 256  # how many of the last tokens the repetition penalty looks at


@dataclass(frozen=True)
class SamplingSettings:
    """How a token is drawn. ``temperature`` 0 is greedy; 0 or 1 switches a filter off.

    ``top_k``: only the k likeliest. ``top_p``: the smallest set that holds this probability.
    ``min_p``: only tokens at least this fraction as likely as the best. ``repeat_penalty``:
    logits of recent tokens are divided (positive) or multiplied (negative) by it (CTRL,
    arXiv 1909.05858). ``seed``: None draws a fresh one.
    """

    temperature: float = 0.3
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.05
    repeat_penalty: float = 1.05
    seed: int | None = None

    def __post_init__(self) -> None:
        rules = {
            "temperature must be 0, or from 0.01 to 100": self.temperature == 0
            or 0.01 <= self.temperature <= 100,
            "top_k must be 0 (off) or more": self.top_k >= 0,
            "top_p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min_p must be at least 0 and below 1": 0 <= self.min_p < 1,
            "repeat_penalty must be from 0.1 to 10": 0.1 <= self.repeat_penalty <= 10,
            "seed must be 0 or more": self.seed is None or self.seed >= 0,
        }
        for rule, holds in rules.items():
            if not holds:
                raise SettingsError(f"{rule}.")


class Sampler:
    """Draws tokens; ids from ``vocab`` on (padding rows without a token) are never drawn."""

    def __init__(self, settings: SamplingSettings, vocab: int) -> None:
        self.settings = settings
        self._vocab = vocab
        self._random = np.random.default_rng(settings.seed)

    @property
    def state(self) -> dict[str, Any]:
        """Where the random numbers stand: plain data."""
        return dict(self._random.bit_generator.state)

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self._random.bit_generator.state = value

    def sample(self, logits: NDArray[np.float32], recent: Sequence[int]) -> int:
        """The next token for ``logits`` [V]; ``recent`` are the last tokens, newest last."""
        s = self.settings
        logits = logits[: self._vocab]
        if s.repeat_penalty != 1 and len(recent):
            logits = _penalise(logits, recent[-PENALTY_WINDOW:], s.repeat_penalty)
        if s.temperature == 0:
            return int(logits.argmax())
        if not np.isfinite(logits.max()):
            raise EngineError("the model's output is not a number; export the bundle again.")
        # Only candidates near the best need sorting: with 49,152 tokens usually a few hundred.
        best = logits.max()
        margin = TAIL if s.min_p == 0 else min(TAIL, -np.log(s.min_p))
        candidates = np.flatnonzero(logits >= best - margin * s.temperature)
        scores = logits[candidates]
        order = np.argsort(-scores, kind="stable")
        if s.top_k:
            order = order[: s.top_k]
        weights = np.exp((scores[order] - best) / s.temperature, dtype=np.float64)
        total = np.cumsum(weights)
        if s.top_p < 1:
            count = int(np.searchsorted(total, s.top_p * total[-1])) + 1
            total = total[:count]
        drawn = int(np.searchsorted(total, self._random.random() * total[-1], side="right"))
        return int(candidates[order[min(drawn, len(total) - 1)]])


def _penalise(
    logits: NDArray[np.float32], recent: Sequence[int], penalty: float
) -> NDArray[np.float32]:
    ids = np.array(recent)  # repeats do no harm: each is written the same value again
    values = logits[ids]
    result = logits.copy()
    result[ids] = np.where(values > 0, values / penalty, values * penalty)
    return result
