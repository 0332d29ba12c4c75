"""llama.cpp as a worker, through the C API that llama-cpp-python binds.

Settings, and why:
- Built from source on the machine it runs on (GGML_NATIVE): a binary wheel stops at AVX2, which
  would hand edgechat an advantage that llama.cpp's own users do not concede.
- n_batch = n_ubatch = 512: the prompt is one pass, as in llama-bench.
- `llama_batch_get_one` asks for the logits of the last token only.
- Flash attention is on, which is what its "auto" picks. Measured in CPU time of one thread with
  AVX512-VNNI, it is 8 % faster at prefill and 4 % at decode after 128 tokens, and 17 % slower
  after 2,048: the variant `noflash` is therefore a peer of its own. Compare with the better one.
- KV cache in F16, its default: half the bytes of fp32 per step.
"""

from __future__ import annotations

import argparse
import ctypes

import llama_cpp as api
import numpy as np
import protocol

BATCH = 512


@api.llama_log_callback
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's log: hundreds of lines for each load."""


class LlamaCpp(protocol.GreedyDecode):
    def __init__(self, args: argparse.Namespace) -> None:
        api.llama_log_set(_quiet, ctypes.c_void_p(0))
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(
            str(args.model).encode(), api.llama_model_default_params()
        )
        params = api.llama_context_default_params()
        params.n_ctx = args.capacity
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = args.threads
        flash = args.variant != "noflash"
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.no_perf = True
        self.context = api.llama_init_from_model(self.model, params)
        self.memory = api.llama_get_memory(self.context)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.info = {
            "settings": f"Q8_0, flash attention {flash}, n_ubatch {BATCH}, KV F16",
            "system": api.llama_print_system_info().decode(),
        }

    def reset(self) -> None:
        api.llama_memory_clear(self.memory, False)

    def feed(self, tokens: list[int]) -> int:
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            ids = (api.llama_token * len(part))(*part)
            failed = api.llama_decode(self.context, api.llama_batch_get_one(ids, len(part)))
            if failed:
                raise RuntimeError(f"llama_decode returned {failed}")
        logits = api.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())


if __name__ == "__main__":
    protocol.serve(LlamaCpp)
