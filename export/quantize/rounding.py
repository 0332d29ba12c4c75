"""Rounding weights to int8 so that the layer's output, not each weight, changes least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgechat.export.spec import Array

Matrix = NDArray[np.float64]
LEVELS = 127
DAMPING = 0.01  # share of the mean diagonal added to the Hessian, as in the paper
BLOCK = 64  # columns whose errors are spread at once


def absmax_scales(weight: Array) -> Array:
    """One scale a row of ``weight`` [out, in]; an all-zero row gets 1."""
    top = np.abs(weight).max(axis=1) / LEVELS
    return np.where(top == 0, 1, top).astype(np.float32)


def round_to_nearest(weight: Array, scales: Array) -> NDArray[np.int8]:
    codes = np.rint(weight / scales[:, None]).clip(-LEVELS, LEVELS)
    return np.asarray(codes, dtype=np.int8)


def round_with_feedback(weight: Array, scales: Array, hessian: Matrix) -> NDArray[np.int8]:
    """GPTQ (arXiv 2210.17323): round column by column, move each error to the columns left.

    ``hessian`` [in, in] is the sum of x xᵀ over calibration inputs. Columns go in the order of
    falling diagonal; inputs that never occurred are rounded to nearest.
    """
    hessian = hessian.copy()
    diagonal = np.diagonal(hessian)
    mean = float(diagonal.mean())
    if mean == 0:
        return round_to_nearest(weight, scales)
    hessian[np.diag_indices_from(hessian)] += DAMPING * mean
    order = np.argsort(-diagonal, kind="stable")
    hessian = hessian[np.ix_(order, order)]
    # Upper Cholesky factor of the inverse: row i says how an error in column i is made good.
    inverse = np.linalg.inv(hessian)
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
    left = np.ascontiguousarray(weight[:, order].T)  # [in, out]: rows are columns of the weight
    codes = np.empty(left.shape, dtype=np.int8)
    for start in range(0, len(left), BLOCK):
        stop = min(start + BLOCK, len(left))
        errors = np.empty((stop - start, left.shape[1]), dtype=np.float32)
        for i in range(start, stop):
            code = np.clip(np.rint(left[i] / scales), -LEVELS, LEVELS)
            codes[i] = code
            errors[i - start] = (left[i] - code * scales) / factor[i, i]
            left[i + 1 : stop] -= factor[i, i + 1 : stop, None] * errors[i - start]
        left[stop:] -= factor[start:stop, stop:].T @ errors
    result = np.empty((weight.shape[0], weight.shape[1]), dtype=np.int8)
    result[:, order] = codes.T
    return result
