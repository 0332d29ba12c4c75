"""Weight-only 8-bit quantisation in blocks along the input features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from edgechat.export.pieces import pieces
from edgechat.export.quantize.static import half
from edgechat.export.spec import Array

ZERO_POINT = 128
BLOCK = 32  # input features that share a scale: 64 is faster but a third worse (KL divergence)


def quantize_blocks(
    weight: Array, block: int, scale_type: DTypeLike = np.float32
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Symmetric absmax quantisation of ``weight`` [N, K] in blocks of ``block`` along K.

    Returns codes [N, ceil(K / block), block] uint8 around 128, the last block padded, and
    scales [N, ceil(K / block)] of ``scale_type``, float32 or float16, with
    weight = (codes - 128) * scale.
    """
    rows, features = weight.shape
    blocks = -(-features // block)
    codes = np.empty((rows, blocks, block), dtype=np.uint8)
    scales = np.empty((rows, blocks), dtype=scale_type)
    for part in pieces(rows, features):
        padded = np.pad(weight[part], ((0, 0), (0, blocks * block - features)))
        grouped = padded.reshape(-1, blocks, block)
        of_part = np.abs(grouped).max(axis=2) / 127
        if scale_type == np.float16:
            of_part = half(of_part)
        safe = np.where(of_part == 0, 1, of_part)[..., None]
        codes[part] = np.rint(grouped / safe) + ZERO_POINT
        scales[part] = of_part
    return codes, scales
