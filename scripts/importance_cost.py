"""What the importance outputs cost: a bundle with them against the same model without.

    edgechat export smollm2 --int8 -o with
    edgechat export smollm2 --int8 --no-importance -o without
    python scripts/importance_cost.py with without

Takes turns between the two; prints medians of tokens/s and their ratio.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from edgechat.bundle import load_bundle
from edgechat.runtime.engine import Tokens
from edgechat.runtime.kv_cache import PREFILL_CHUNK
from edgechat.runtime.onnx_engine import OnnxEngine

ROUNDS, STEPS = 7, 40


def prefill(engine: OnnxEngine, ids: Tokens, start: int) -> float:
    """Tokens a second for ``ids`` [1, n] from slot ``start`` on."""
    begin = time.perf_counter()
    for place in range(0, ids.shape[1], PREFILL_CHUNK):
        lengths = np.array([start + place], dtype=np.int32)
        engine.step(ids[:, place : place + PREFILL_CHUNK], lengths)
    return ids.shape[1] / (time.perf_counter() - begin)


def decode(engine: OnnxEngine, ids: Tokens, start: int) -> float:
    """Tokens a second, one by one, behind ``start`` slots."""
    begin = time.perf_counter()
    for step in range(STEPS):
        engine.step(ids[:, step : step + 1], np.array([start + step], dtype=np.int32))
    return STEPS / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("with_importance", type=Path)
    parser.add_argument("without", type=Path)
    args = parser.parse_args()
    engines = {
        "with": OnnxEngine(load_bundle(args.with_importance), 2048, importance=True),
        "without": OnnxEngine(load_bundle(args.without), 2048),
    }
    ids = np.random.default_rng(0).integers(3, 40_000, size=(1, 512))
    speeds: dict[tuple[str, str], list[float]] = {}
    for round_ in range(ROUNDS + 1):  # the first warms up
        for name, engine in engines.items():
            measured = {
                "prefill 512": prefill(engine, ids, 0),
                "prefill 512 behind 1,500": prefill(engine, ids, 1500),
                "decode at 128": decode(engine, ids, 128),
                "decode at 1,500": decode(engine, ids, 1500),
            }
            for what, speed in measured.items():
                if round_:
                    speeds.setdefault((what, name), []).append(speed)
    for what in measured:
        one, other = (float(np.median(speeds[what, name])) for name in engines)
        print(f"{what:<26}{one:8.0f} with {other:8.0f} without   {one / other:.3f}")


if __name__ == "__main__":
    main()
