"""Rounding weights to int8 so that the layer's output, not each weight, changes least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgechat.export.pieces import pieces
from edgechat.export.spec import Array

Matrix = NDArray[np.float64]
LEVELS = 127
DAMPING = 0.01  # share of the mean diagonal added to the Hessian, as in the paper
BLOCK = 64  # columns whose errors are spread at once
TOKENS = 512  # calibration inputs that are summed in float32 before they go to float64
PANEL = 256  # columns of the Hessian that are factored at once
ROWS = 1 << 24  # elements of a weight that are rounded at once


def absmax_scales(weight: Array) -> Array:
    """One scale a row of ``weight`` [out, in]; an all-zero row gets 1."""
    top = np.maximum(weight.max(axis=1), -weight.min(axis=1)) / LEVELS
    return np.where(top == 0, 1, top).astype(np.float32)


def round_to_nearest(weight: Array, scales: Array) -> NDArray[np.int8]:
    codes = np.empty(weight.shape, dtype=np.int8)
    for rows in pieces(*weight.shape):
        codes[rows] = np.rint(weight[rows] / scales[rows, None]).clip(-LEVELS, LEVELS)
    return codes


def round_with_feedback(weight: Array, scales: Array, x: Array) -> NDArray[np.int8]:
    """GPTQ (arXiv 2210.17323): round column by column, make good each error in the columns left.

    ``x`` [n, in] are calibration inputs. Columns go in the order of falling power of their
    input. In the form of Babai's nearest plane (arXiv 2507.18553), which needs no inverse: with
    xᵀx = Rᵀ R and R upper triangular, column i, the last first, becomes
    round(w_i + Σ_{j>i} R_ij / R_ii (w_j - rounded w_j)).
    """
    power = np.einsum("ij,ij->j", x, x, dtype=np.float64)
    mean = float(power.mean())
    if mean == 0:
        return round_to_nearest(weight, scales)
    order = np.argsort(power, kind="stable")
    root = _factor(_hessian(x, order, DAMPING * mean))
    root /= np.diagonal(root)[:, None].copy()
    codes = np.empty(weight.shape, dtype=np.int8)
    for rows in pieces(len(weight), weight.shape[1], ROWS):
        codes[rows] = _round(weight[rows], scales[rows], root, order)
    return codes


def _round(weight: Array, scales: Array, root: Matrix, order: NDArray[np.intp]) -> NDArray[np.int8]:
    left = np.ascontiguousarray(weight[:, order].T)  # [in, out]; errors once a row is rounded
    codes = np.empty(left.shape, dtype=np.int8)
    for stop in range(len(left), 0, -BLOCK):
        start = max(stop - BLOCK, 0)
        of_block = root[start:stop].astype(np.float32)
        left_to_do = left[start:stop] + of_block[:, stop:] @ left[stop:]
        for i in range(stop - 1, start - 1, -1):
            of_row = of_block[i - start, i + 1 : stop]
            wanted = left_to_do[i - start] + of_row @ left[i + 1 : stop]
            code = np.clip(np.rint(wanted / scales), -LEVELS, LEVELS)
            codes[i] = code
            left[i] -= code * scales
    result = np.empty(weight.shape, dtype=np.int8)
    result[:, order] = codes.T
    return result


def _hessian(x: Array, order: NDArray[np.intp], damping: float) -> Matrix:
    """The upper triangle of xᵀx, with its columns in ``order`` and ``damping`` on the diagonal."""
    size = len(order)
    hessian = np.zeros((size, size))
    for start in range(0, len(x), TOKENS):
        part = x[start : start + TOKENS][:, order]
        for columns in _panels(size):
            hessian[columns, columns.start :] += part[:, columns].T @ part[:, columns.start :]
    hessian[np.diag_indices(size)] += damping
    return hessian


def _factor(hessian: Matrix) -> Matrix:
    """The upper Cholesky factor, in the place of the upper triangle it is given."""
    size = len(hessian)
    for columns in _panels(size):
        lower = np.linalg.cholesky(hessian[columns, columns].T)
        hessian[columns, columns] = lower.T
        behind = slice(columns.stop, size)
        hessian[columns, behind] = np.linalg.inv(lower) @ hessian[columns, behind]
        for rest in _panels(size, columns.stop):
            hessian[rest, rest.start :] -= hessian[columns, rest].T @ hessian[columns, rest.start :]
    return hessian


def _panels(size: int, start: int = 0) -> list[slice]:
    return [slice(at, min(at + PANEL, size)) for at in range(start, size, PANEL)]
