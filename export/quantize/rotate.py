"""Folding norms and rotating the residual stream: exact changes of basis before quantising.

An orthogonal rotation spreads outlier channels over all channels, so that one scale fits them
(QuaRot, arXiv 2404.00456; SpinQuant, arXiv 2405.16406). Everything here leaves the model's
output as it was, up to float32 rounding.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from edgechat.export.spec import Array, DecoderSpec, LayerWeights, Linear, ModelWeights

SEED = 20260


class RotatedWeights:
    """``weights`` with norm gains folded into the linears behind them and rotated.

    The residual stream is rotated by one orthogonal [hidden, hidden] matrix R (x' = x R), the
    values of each KV head by another one, undone in the output projection. RMSNorm commutes
    with rotations once its gain is folded away; the gain of a norm *behind* attention or MLP
    cannot be, so a model with post-norms keeps its stream and its gains, and only the values
    are rotated. Embedding and head are no longer the same matrix, even where they were tied,
    and the embedding's scale is in the table.
    """

    def __init__(self, weights: ModelWeights, spec: DecoderSpec, seed: int = SEED) -> None:
        self._weights, self._spec = weights, spec
        random = np.random.default_rng(seed)
        self._r = None if spec.post_norms else orthogonal(spec.hidden_size, random)
        self._v = orthogonal(spec.head_dim, random)

    def embedding(self) -> Array:
        return _rotate(self._weights.embedding() * np.float32(self._spec.embedding_scale), self._r)

    def head(self) -> Linear:
        tied = self._spec.tied_embeddings
        head = Linear(self._weights.embedding()) if tied else self._weights.head()
        return self._reader(head, self._weights.final_norm())[1]

    def final_norm(self) -> Array:
        gain = self._weights.final_norm()
        return gain if self._r is None else np.ones_like(gain)

    def layer(self, index: int) -> LayerWeights[Linear]:
        layer, s = self._weights.layer(index), self._spec
        attn_norm, qkv = self._reader(layer.qkv, layer.attn_norm)
        values = slice(s.q_size + s.kv_size, None)
        weight = qkv.weight.copy()
        weight[values] = self._rotate_heads(weight[values].T).T
        bias = None if qkv.bias is None else qkv.bias.copy()
        if bias is not None:
            bias[values] = self._rotate_heads(bias[values])
        mlp_norm, gate_up = self._reader(layer.gate_up, layer.mlp_norm)
        return dataclasses.replace(
            layer,
            attn_norm=attn_norm,
            qkv=Linear(weight, bias),
            o=self._writer(Linear(self._rotate_heads(layer.o.weight), layer.o.bias)),
            mlp_norm=mlp_norm,
            gate_up=gate_up,
            down=self._writer(layer.down),
        )

    def _reader(self, linear: Linear, gain: Array | None) -> tuple[Array | None, Linear]:
        """A projection that reads the residual stream, and the gain of the norm before it."""
        if self._r is None or gain is None:
            return gain, linear
        return np.ones_like(gain), Linear(_rotate(linear.weight * gain, self._r), linear.bias)

    def _writer(self, linear: Linear) -> Linear:
        """A projection that adds to the residual stream writes rotated vectors."""
        bias = linear.bias
        return Linear(
            _rotate(linear.weight.T, self._r).T,
            None if bias is None else _rotate(bias, self._r),
        )

    def _rotate_heads(self, x: Array) -> Array:
        """Rotate the last axis, which holds heads side by side, head by head."""
        heads = x.reshape(*x.shape[:-1], -1, self._spec.head_dim)
        return _rotate(heads, self._v).reshape(x.shape)


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


def _rotate(x: Array, rotation: NDArray[np.float64] | None) -> Array:
    if rotation is None:
        return x
    return np.asarray(x.astype(np.float64) @ rotation, dtype=np.float32)
