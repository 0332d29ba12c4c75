"""Does speed or memory change in a very long conversation? Decodes as many tokens as you like.

    python scripts/long_stream.py BUNDLE --tokens 200000 --window 512 --archive /mnt/nvme --read

Prints resident memory, decode speed and what eviction and archiving cost for every 10,000 tokens,
and how long a recall takes at the end. With --read the tokens between the second and the last
10,000 are read in chunks instead of decoded one by one, which takes a tenth of the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgechat.assembly import make_cache
from edgechat.bundle import load_bundle
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import POLICIES
from edgechat.runtime.sampling import Sampler, SamplingSettings
from edgechat.runtime.text import TextCodec
from edgechat.settings import Settings

BLOCK = 10_000  # tokens timed together
QUESTION = "What did you say about the old house by the river, and who lived in it then?"


def resident_bytes() -> int:
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x]
    return int(line.split()[1]) * 1024


class Timer:
    """Sums up the seconds spent in a function, nested calls not counted twice."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.seconds = run, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.run(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--policy", choices=POLICIES[:2], default="key")
    parser.add_argument("--read", action="store_true", help="decode only the ends")
    parser.add_argument("--archive", type=Path, help="folder of the archive; without: none")
    args = parser.parse_args()
    bundle = load_bundle(args.bundle)
    settings = Settings(
        policy=args.policy,
        cache_window=args.window,
        archive_mib=0 if args.archive is None else 16 * 1024,
        archive_folder=None if args.archive is None else str(args.archive),
    )
    codec = TextCodec(bundle)
    engine = OnnxEngine(bundle, args.window + settings.sinks, importance=True)
    cache = make_cache(bundle, settings, engine, codec)
    memory = cache.memory
    sampler = Sampler(SamplingSettings(temperature=1.0, seed=0), codec.size)
    step, evict = Timer(engine.step), Timer(cache.make_room)
    engine.step = step  # type: ignore[method-assign]
    cache.make_room = evict  # type: ignore[method-assign]
    token, recent, blocks = 1, [1], []
    count = args.tokens // BLOCK
    said: list[int] = []
    for number in range(count):
        read = args.read and 2 <= number < count - 1
        start = time.perf_counter()
        step.seconds = evict.seconds = 0.0
        if read:
            ids = np.roll(np.asarray(said), 997 * number)[:BLOCK]
            for _ in cache.feed_chunks(ids):
                pass
        else:
            for _ in range(BLOCK):
                token = sampler.sample(cache.feed_one(token), recent)
                recent = [*recent[-255:], token]
                if len(said) < 2 * BLOCK:
                    said.append(token)
        seconds = time.perf_counter() - start
        blocks.append(
            {
                "tokens": cache.fed,
                "read": read,
                "milliseconds_per_token": 1e3 * seconds / BLOCK,
                "eviction_and_archive_percent": 100 * evict.seconds / seconds,
                "other_python_percent": 100 * (1 - (step.seconds + evict.seconds) / seconds),
                "resident_mib": resident_bytes() / (1 << 20),
                "archived_blocks": 0 if memory is None else len(memory.archive),
            }
        )
        print(json.dumps({k: round(v, 3) for k, v in blocks[-1].items()}), flush=True)
    first, last = blocks[min(1, len(blocks) - 1)], blocks[-1]
    growth = 100 * (last["resident_mib"] / first["resident_mib"] - 1)
    slower = last["milliseconds_per_token"] / first["milliseconds_per_token"]
    print(f"since the second {BLOCK:,} tokens: memory {growth:+.2f} %, time a token {slower:.3f} x")
    if memory is not None:
        turn = cache.fed
        question = np.asarray(codec.encode(QUESTION))
        for _ in range(2):  # the first reads from a cold file
            cache.feed(question[cache.fed - turn :])
            start = time.perf_counter()
            count = cache.recall((turn, cache.fed), settings.recall_blocks, turn)
            milliseconds = 1e3 * (time.perf_counter() - start)
            print(f"recall of {count} tokens among {len(memory.archive):,}: {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
