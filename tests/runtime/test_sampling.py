"""Sampling draws what the textbook formulas say."""

from __future__ import annotations

import numpy as np
import pytest

from edgechat.errors import SettingsError
from edgechat.runtime.sampling import Sampler, SamplingSettings

LOGITS = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], dtype=np.float32))
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "seed": 1}


def frequencies(recent: tuple[int, ...] = (), vocab: int = 5, **settings: float) -> np.ndarray:
    sampler = Sampler(SamplingSettings(**{**OFF, **settings}), vocab)  # type: ignore[arg-type]
    draws = [sampler.sample(LOGITS, recent) for _ in range(20_000)]
    return np.bincount(draws, minlength=5) / len(draws)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_p": 0.6}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_p": 0.75}, [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
        ({"min_p": 0.3}, [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
        ({"temperature": 0.5}, np.array([16, 9, 2.25, 1, 0.25]) / 28.5),
        ({"temperature": 0.0}, [1, 0, 0, 0, 0]),
        ({"vocab": 2}, [4 / 7, 3 / 7, 0, 0, 0]),
    ],
)
def test_distribution(settings: dict[str, float], expected: list[float]) -> None:
    assert np.abs(frequencies(**settings) - expected).max() < 0.012  # type: ignore[arg-type]


def test_repeat_penalty_scales_recent_logits() -> None:
    logits = np.array([2.0, 1.9, -1.0], dtype=np.float32)
    sampler = Sampler(SamplingSettings(temperature=0, repeat_penalty=1.5), 3)
    assert sampler.sample(logits, []) == 0
    assert sampler.sample(logits, [0]) == 1
    assert logits.tolist() == pytest.approx([2.0, 1.9, -1.0])  # the engine's buffer is untouched


def test_seed_repeats_the_draws() -> None:
    def draw() -> list[int]:
        sampler = Sampler(SamplingSettings(**{**OFF, "seed": 7}), 5)  # type: ignore[arg-type]
        return [sampler.sample(LOGITS, []) for _ in range(50)]

    assert draw() == draw()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"min_p": 1},
        {"top_k": -1},
        {"repeat_penalty": 0},
        {"seed": -1},
        {"temperature": float("nan")},
    ],
)
def test_senseless_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        SamplingSettings(**bad)  # type: ignore[arg-type]
