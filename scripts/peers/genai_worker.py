"""onnxruntime-genai as a worker: int8 MatMulNBits made by its own model builder.

Settings, and why:
- The builder's `prune_lm_head` computes the logits of the last token only; its default computes
  them for the whole prompt, a fifth of the work for nothing.
- `generate_next_token` rather than `append_tokens`: it is what its users call, and its greedy
  search runs in native code.
- `min_length` up to the capacity keeps its search from stopping at end-of-text.
- Threads spin between nodes (ONNX Runtime's default, faster); the parent stops the process while
  others are measured.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import onnxruntime_genai as og
import protocol


class Genai:
    def __init__(self, args: argparse.Namespace) -> None:
        config = og.Config(str(args.model))
        options = {"intra_op_num_threads": args.threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self.model = og.Model(config)
        self.params = og.GeneratorParams(self.model)
        self.params.set_search_options(
            max_length=args.capacity, min_length=args.capacity, do_sample=False, batch_size=1
        )
        self.generator = og.Generator(self.model, self.params)
        self.info = {
            "version": og.__version__,
            "settings": "int8 MatMulNBits block 32 accuracy level 4, lm head pruned",
        }

    def reset(self) -> None:
        self.generator.rewind_to(0)

    def feed(self, tokens: list[int]) -> int:
        self.generator.append_tokens(np.array([tokens], dtype=np.int32))
        self.generator.generate_next_token()  # the model has run: this only chooses
        return int(self.generator.get_next_tokens()[0])

    def decode(self, token: int, count: int) -> None:
        """`token` is already chosen inside: each call runs the model on it and chooses another."""
        for _ in range(count):
            self.generator.generate_next_token()


if __name__ == "__main__":
    protocol.serve(Genai)
