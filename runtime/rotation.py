"""Moving keys that were already rotated to other positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.bundle import Rotary

Array = NDArray[np.float32]
Keys = NDArray[Any]
Turn = tuple[Array, Array]  # cos and sin [n, R / 2]


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


def turns(rotary: Sequence[Rotary], layers: int, shift: NDArray[np.int64]) -> list[Turn]:
    """Each layer's cos and sin [n, R / 2] that move keys by ``shift`` [n] positions; R is 0 in a
    layer without rotary."""
    none = np.ones((len(shift), 0), dtype=np.float32)
    found = [(none, none)] * layers
    for one in rotary:
        angles = shift[:, None] * np.asarray(one.inv_freq, dtype=np.float64)
        turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        for layer in one.layers:
            found[layer] = turn
    return found


def move_keys(kv: Keys, turns: Sequence[Turn]) -> Keys:
    """``kv`` [layers, 2, H, n, D] with each layer's keys rotated by its turn; float32, or codes."""
    result = kv.astype(np.int8 if kv.dtype == np.int8 else np.float32)
    if all(turn is turns[0] for turn in turns):
        result[:, 0] = rotate_keys(kv[:, 0], *turns[0])
        return result
    for layer, turn in enumerate(turns):
        result[layer, 0] = rotate_keys(kv[layer, 0], *turn)
    return result
