"""The loss is measured in a process of its own, whose end is not the export's."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgechat import measure
from edgechat.bundle import Bundle, load_bundle
from edgechat.errors import EngineError
from edgechat.evaluate import Reader, evaluate
from edgechat.measure import Ids, measure_apart
from edgechat.settings import Settings

IDS = np.random.default_rng(0).integers(3, 259, size=100)


def die(bundle: Bundle, ids: Ids, on_gpu: bool) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def refuse(bundle: Bundle, ids: Ids, on_gpu: bool) -> float:
    raise EngineError("no such engine.")


def test_the_same_perplexity_as_here(tiny_bundle: Path) -> None:
    bundle = load_bundle(tiny_bundle)
    here = evaluate(Reader(bundle, Settings(policy="full"), len(IDS)), IDS).perplexity
    assert measure_apart(bundle, IDS, False) == pytest.approx(here)


@pytest.mark.parametrize(("how", "expected"), [(die, None), (refuse, EngineError)])
def test_its_end_and_its_errors_are_told(
    how: Callable[..., float],
    expected: type[Exception] | None,
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_measure", how)
    monkeypatch.setattr(
        measure, "CONTEXT", multiprocessing.get_context("fork")
    )  # so that the child has it too
    if expected is None:
        assert measure_apart(load_bundle(tiny_bundle), IDS, False) is None
        return
    with pytest.raises(expected, match="no such engine"):
        measure_apart(load_bundle(tiny_bundle), IDS, False)
