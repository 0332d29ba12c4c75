"""Moving keys that were already rotated to other positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Keys = NDArray[Any]


def rotate_keys(keys: Keys, cos: Array, sin: Array) -> Keys:
    """Rotate ``keys`` [H, n, D] by the angles whose ``cos`` and ``sin`` are [n, R / 2].

    Rotary embeddings compose by adding angles (RoFormer, arXiv 2104.09864), so a key rotated
    for position p becomes the key for p + shift by one more rotation of shift * inv_freq. The
    first R features form pairs (i, i + R / 2); features behind R are not rotated. int8 keys are
    codes whose pairs share a scale, so the codes themselves are rotated and rounded.
    """
    half = cos.shape[-1]
    first, second = keys[..., :half], keys[..., half : 2 * half]
    result = np.empty(keys.shape, dtype=np.float32)
    result[..., 2 * half :] = keys[..., 2 * half :]
    np.multiply(first, cos, out=result[..., :half])
    result[..., :half] -= second * sin
    np.multiply(second, cos, out=result[..., half : 2 * half])
    result[..., half : 2 * half] += first * sin
    if keys.dtype == np.int8:
        return np.rint(result, out=result).clip(-127, 127).astype(np.int8)
    return result
