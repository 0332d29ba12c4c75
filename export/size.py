"""How large a bundle will be, before there is one."""

from __future__ import annotations

from edgechat.bundle import SURPRISAL_IDS
from edgechat.export.quantize.blockwise import BLOCK
from edgechat.export.spec import DecoderSpec

OTHERS = 8 << 20  # bytes: graphs with their norms, biases and scales, alignment, tokenizer
BYTES = {"fp32": 4.0, "fp16": 2.0}
BYTES_INT8 = 1 + 4 / BLOCK + 0.005  # one scale for BLOCK inputs is the most there are


def data_bytes(
    spec: DecoderSpec, precision: str, positions: int, importance: bool, on_gpu: bool
) -> int:
    """Bytes of all tensors in the data files, a little above the truth.

    ``spec`` is the recipe's, which unties what it rotates; ``on_gpu`` means any target but the CPU.
    """
    inputs = spec.q_size + spec.kv_size * 2  # rows of what reads the stream in attention
    inner = (2 + spec.gated) * spec.intermediate_size
    rows = spec.num_layers * (inputs + spec.q_size + inner)
    rows += spec.vocab_size * (1 if spec.tied_embeddings else 2)
    if importance:
        rows += min(spec.vocab_size, SURPRISAL_IDS)  # the head's first rows once more
        if precision not in BYTES and not on_gpu:
            rows += spec.vocab_size  # an 8-bit head for the CPU lies in another order
    weights = int(rows * spec.hidden_size * BYTES.get(precision, BYTES_INT8))
    return weights + positions * sum(_rotary_bytes(spec, r.dim, on_gpu) for r in spec.rotaries)


def _rotary_bytes(spec: DecoderSpec, dim: int, on_gpu: bool) -> int:
    """Cosines and sines of a position; on a GPU they can be as wide as a head, and the compact
    graph has its own."""
    return 4 * (4 * spec.head_dim if on_gpu else dim)
