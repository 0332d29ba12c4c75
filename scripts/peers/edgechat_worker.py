"""edgechat as a worker: one engine over a bundle, 512 tokens a step, last-token logits only."""

from __future__ import annotations

import argparse

import numpy as np
import protocol

from edgechat.bundle import load_bundle
from edgechat.runtime.onnx_engine import OnnxEngine

CHUNK = 512


class Edgechat(protocol.GreedyDecode):
    def __init__(self, args: argparse.Namespace) -> None:
        bundle = load_bundle(args.model)
        self.engine = OnnxEngine(bundle, capacity=args.capacity, threads=args.threads)
        self.used = 0
        self.info = {"settings": f"steps of {CHUNK}, capacity {args.capacity}"}

    def reset(self) -> None:
        self.used = 0  # the slots are overwritten: nothing to clear

    def feed(self, tokens: list[int]) -> int:
        for start in range(0, len(tokens), CHUNK):
            ids = np.array([tokens[start : start + CHUNK]], dtype=np.int64)
            logits = self.engine.step(ids, np.array([self.used], dtype=np.int32))
            self.used += ids.shape[1]
        return int(logits[0, -1].argmax())


if __name__ == "__main__":
    protocol.serve(Edgechat)
