"""Does speed or memory change in a very long conversation? Decodes tens of thousands of tokens.

    python scripts/long_stream.py BUNDLE --tokens 50000 --window 1024

Prints resident memory and decode speed after the first 2,000 tokens and at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from edgechat.bundle import load_bundle
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.sampling import Sampler, SamplingSettings

BLOCK = 1000  # tokens timed together


def resident_bytes() -> int:
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x]
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, default=4)
    args = parser.parse_args()
    bundle = load_bundle(args.bundle)
    engine = OnnxEngine(bundle, args.window + args.sinks)
    cache = KVCache(engine, make_policy("window", args.sinks))
    sampler = Sampler(SamplingSettings(temperature=1.0, seed=0), bundle.manifest.tokens.size)
    token, recent = 1, [1]
    inside = 0.0  # seconds within the engine's session, to tell what Python costs
    blocks = []
    run = engine.step

    def timed(*step: object) -> object:
        nonlocal inside
        start = time.perf_counter()
        result = run(*step)  # type: ignore[arg-type]
        inside += time.perf_counter() - start
        return result

    engine.step = timed  # type: ignore[method-assign, assignment]
    for _ in range(args.tokens // BLOCK):
        start, inside = time.perf_counter(), 0.0
        for _ in range(BLOCK):
            token = sampler.sample(cache.feed_one(token), recent)
            recent.append(token)
        seconds = time.perf_counter() - start
        recent = recent[-BLOCK:]
        blocks.append(
            {
                "tokens": cache.fed,
                "tokens_per_second": BLOCK / seconds,
                "outside_engine_percent": 100 * (1 - inside / seconds),
                "resident_mib": resident_bytes() / (1 << 20),
            }
        )
        print(json.dumps(blocks[-1]), flush=True)
    first, last = blocks[1], blocks[-1]
    growth = 100 * (last["resident_mib"] / first["resident_mib"] - 1)
    speed = 100 * last["tokens_per_second"] / first["tokens_per_second"]
    print(f"memory since token 2,000: {growth:+.2f} %; speed of the last 1,000: {speed:.1f} %")


if __name__ == "__main__":
    main()
