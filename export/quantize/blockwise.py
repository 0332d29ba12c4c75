"""Weight-only 8-bit quantisation in blocks along the input features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgechat.export.spec import Array

ZERO_POINT = 128
BLOCK = 32  # input features that share a scale: 64 is faster but a third worse (KL divergence)


def quantize_blocks(weight: Array, block: int) -> tuple[NDArray[np.uint8], Array]:
    """Symmetric absmax quantisation of ``weight`` [N, K] in blocks of ``block`` along K.

    Returns codes [N, ceil(K / block), block] uint8 around 128, the last block padded, and
    scales [N, ceil(K / block)] float32, with weight = (codes - 128) * scale.
    """
    rows, features = weight.shape
    blocks = -(-features // block)
    padded = np.pad(weight, ((0, 0), (0, blocks * block - features)))
    grouped = padded.reshape(rows, blocks, block)
    scales = np.abs(grouped).max(axis=2) / 127
    safe = np.where(scales == 0, 1, scales)[..., None]
    codes = (np.rint(grouped / safe) + ZERO_POINT).astype(np.uint8)
    return codes, scales.astype(np.float32)
