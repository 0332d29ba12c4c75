"""Folding norms and rotating the residual stream: exact changes of basis before quantising.

An orthogonal rotation spreads outlier channels over all channels, so that one scale fits them
(QuaRot, arXiv 2404.00456; SpinQuant, arXiv 2405.16406). Everything here leaves the model's
output as it was, up to float32 rounding.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from edgechat.export.pieces import pieces
from edgechat.export.spec import Array, DecoderSpec, LayerWeights, Linear, ModelWeights

SEED = 20260


class RotatedWeights:
    """``weights`` with norm gains folded into the linears behind them and rotated.

    The residual stream is rotated by one orthogonal [hidden, hidden] matrix R (x' = x R), the
    values of each KV head by another one, undone in the output projection. RMSNorm commutes
    with rotations once its gain is folded away; the gain of a norm *behind* attention or MLP
    cannot be, so a model with post-norms keeps its stream and its gains, and only the values
    are rotated. Embedding and head are no longer the same matrix, even where they were tied,
    and the embedding's scale is in the table. Arrays of ``weights`` are changed in place.
    """

    def __init__(self, weights: ModelWeights, spec: DecoderSpec, seed: int = SEED) -> None:
        self._weights, self._spec = weights, spec
        random = np.random.default_rng(seed)
        self._r = None if spec.post_norms else orthogonal(spec.hidden_size, random)
        self._v = orthogonal(spec.head_dim, random)

    def embedding(self) -> Array:
        table = self._weights.embedding()
        if self._spec.embedding_scale != 1:
            table *= np.float32(self._spec.embedding_scale)
        _rotate(table, self._r)
        return table

    def head(self) -> Linear:
        tied = self._spec.tied_embeddings
        head = Linear(self._weights.embedding()) if tied else self._weights.head()
        self._reader(head, self._weights.final_norm())
        return head

    def final_norm(self) -> Array:
        gain = self._weights.final_norm()
        return gain if self._r is None else np.ones_like(gain)

    def layer(self, index: int) -> LayerWeights[Linear]:
        layer, s = self._weights.layer(index), self._spec
        attn_norm = self._reader(layer.qkv, layer.attn_norm)
        mlp_norm = self._reader(layer.gate_up, layer.mlp_norm)
        for head in _heads(s.q_size + s.kv_size, s.num_kv_heads, s.head_dim):
            _rotate(layer.qkv.weight[head].T, self._v)
            if layer.qkv.bias is not None:
                _rotate(layer.qkv.bias[None, head], self._v)
        for head in _heads(0, s.num_heads, s.head_dim):
            _rotate(layer.o.weight[:, head], self._v)
        for writer in (layer.o, layer.down):  # what they add to the stream is rotated
            _rotate(writer.weight.T, self._r)
            if writer.bias is not None:
                _rotate(writer.bias[None], self._r)
        return dataclasses.replace(layer, attn_norm=attn_norm, mlp_norm=mlp_norm)

    def _reader(self, linear: Linear, gain: Array | None) -> Array | None:
        """Rotate a projection that reads the residual stream, with the gain of the norm before it
        folded in; returns what that gain is then."""
        if self._r is None or gain is None:
            return gain
        linear.weight *= gain
        _rotate(linear.weight, self._r)
        return np.ones_like(gain)


def _heads(first: int, count: int, size: int) -> list[slice]:
    return [slice(first + head * size, first + (head + 1) * size) for head in range(count)]


def orthogonal(size: int, random: np.random.Generator) -> NDArray[np.float64]:
    """A random orthogonal [size, size] matrix: Hadamard where a power of two divides ``size``.

    The Kronecker product of a Hadamard matrix and an orthogonal one for the odd rest, rows
    permuted in sign; every entry is small, which is what spreads outliers.
    """
    power = size & -size
    q, r = np.linalg.qr(random.standard_normal((size // power, size // power)))
    rest = q * np.sign(np.diag(r))
    signs = random.choice([-1.0, 1.0], size)
    result: NDArray[np.float64] = signs[:, None] * np.kron(hadamard(power), rest)
    return result


def hadamard(size: int) -> NDArray[np.float64]:
    """The orthonormal, symmetric [size, size] Hadamard matrix; ``size`` is a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    result: NDArray[np.float64] = matrix / np.sqrt(size)
    return result


def _rotate(x: Array, rotation: NDArray[np.float64] | None) -> None:
    """Multiply the rows of ``x``, in place."""
    if rotation is not None:
        for rows in pieces(*x.shape):
            x[rows] = x[rows].astype(np.float64) @ rotation
