"""Moving keys that were already rotated to other positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def rotate_keys(keys: Array, cos: Array, sin: Array) -> Array:
    """Rotate ``keys`` [H, n, D] by the angles whose ``cos`` and ``sin`` are [n, R / 2].

    Rotary embeddings compose by adding angles (RoFormer, arXiv 2104.09864), so a key rotated
    for position p becomes the key for p + shift by one more rotation of shift * inv_freq. The
    first R features form pairs (i, i + R / 2); features behind R are not rotated.
    """
    half = cos.shape[-1]
    first, second = keys[..., :half], keys[..., half : 2 * half]
    result = keys.copy()
    result[..., :half] = first * cos - second * sin
    result[..., half : 2 * half] = second * cos + first * sin
    return result
