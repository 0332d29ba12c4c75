"""edgechat as a worker: the KV cache the product uses, last-token logits only.

The variant `window=N` bounds the cache to N recent tokens and 4 sinks; otherwise it is full.
"""

from __future__ import annotations

import argparse

import numpy as np
import protocol

from edgechat.bundle import load_bundle
from edgechat.runtime.kv_cache import PREFILL_CHUNK, KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy

SINKS = 4


class Edgechat:
    def __init__(self, args: argparse.Namespace) -> None:
        window = int(args.variant.removeprefix("window=") or 0)
        capacity = window + SINKS if window else args.capacity
        self._policy = make_policy("window" if window else "full", SINKS)
        self._engine = OnnxEngine(load_bundle(args.model), capacity, threads=args.threads)
        self.info = {"settings": f"steps of {PREFILL_CHUNK}, cache of {capacity}"}
        self.reset()

    def reset(self) -> None:
        self._cache = KVCache(self._engine, self._policy)

    def feed(self, tokens: list[int]) -> int:
        logits = self._cache.feed(np.array(tokens, dtype=np.int64))
        assert logits is not None
        return int(logits.argmax())

    def decode(self, token: int, count: int) -> None:
        for _ in range(count):
            token = int(self._cache.feed_one(token).argmax())


if __name__ == "__main__":
    protocol.serve(Edgechat)
