"""transformers in fp32 as a worker: the reference anybody starts from.

Settings, and why: eager PyTorch with SDPA attention and the growing cache that `generate` uses,
called without `generate` so that its Python bookkeeping is not counted; `logits_to_keep=1`
computes the logits of the last token only. No `torch.compile`: it needs a compiler and minutes.
"""

from __future__ import annotations

import argparse

import protocol
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache


class Transformers(protocol.GreedyDecode):
    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(args.threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.cache = DynamicCache()
        self.info = {
            "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "settings": "fp32, eager, SDPA, DynamicCache, logits_to_keep 1",
        }

    def reset(self) -> None:
        self.cache = DynamicCache()

    @torch.inference_mode()
    def feed(self, tokens: list[int]) -> int:
        output = self.model(
            input_ids=torch.tensor([tokens]),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return int(output.logits[0, -1].argmax())


if __name__ == "__main__":
    protocol.serve(Transformers)
