"""W8A8: int8 weights and activations, calibrated layer by layer.

For each layer, with the activations the unquantised model has there:

1. The down-projection's input, which has the worst outliers, is smoothed: channel j is divided
   by s_j = max|x_j|^α / max|w_j|^(1-α) (SmoothQuant, arXiv 2211.10438), folded into the up rows
   and the down columns, exactly. What is left is spread over 64 neighbouring channels by a
   Hadamard product when the graph runs (QuaRot, arXiv 2404.00456). Without a gate there is
   no linear path to fold the factors into, so there is only the Hadamard product.
2. Weights are rounded with error feedback (GPTQ) to one scale a row.
3. A projection whose output still suffers from quantising its input by one scale for a whole
   chunk of tokens keeps float activations (8-bit weights in blocks; slower prefill).

Where the residual stream could not be rotated (post-norms), what reads it is treated like the
down-projection, with the factors folded into the gain of the norm before it, if there is one;
the head then keeps float activations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from edgechat.export.pieces import pieces
from edgechat.export.quantize.activations import Calibrator
from edgechat.export.quantize.rotate import hadamard
from edgechat.export.quantize.rounding import absmax_scales, round_with_feedback
from edgechat.export.spec import (
    AnyLinear,
    Array,
    DecoderSpec,
    Int8Linear,
    LayerWeights,
    Linear,
    ModelWeights,
)

ALPHA = 0.5
LARGEST_HADAMARD = 64
LARGEST_ERROR = 0.06  # of the output, root mean square, from quantising activations alone


class W8A8Weights:
    """Quantises ``weights`` while the decoder asks for them; layers must come in order.

    ``weights_only`` collects the names of projections that keep float activations.
    """

    def __init__(self, weights: ModelWeights, spec: DecoderSpec, calibrator: Calibrator) -> None:
        self._weights, self._spec, self._calibrator = weights, spec, calibrator
        self.weights_only: list[str] = []

    def embedding(self) -> Array:
        return self._calibrator.embedding()

    def final_norm(self) -> Array:
        return self._weights.final_norm()

    def head(self) -> AnyLinear:
        if self._spec.post_norms:
            self.weights_only.append("head")
            return self._weights.head()
        return _quantise(self._weights.head(), self._calibrator.head_input(self.final_norm()))

    def layer(self, index: int) -> LayerWeights[AnyLinear]:
        layer, seen = self._calibrator.layer(index)
        if self._spec.gated:
            _smooth(layer.gate_up, layer.down, seen["down"])
        name = f"layers.{index}"
        attn_norm, qkv = self._reader(layer.attn_norm, layer.qkv, seen.pop("qkv"), f"{name}.qkv")
        o = self._checked(layer.o, seen.pop("o"), f"{name}.o")
        mlp_norm, gate_up = self._reader(
            layer.mlp_norm, layer.gate_up, seen.pop("gate_up"), f"{name}.gate_up"
        )
        result: LayerWeights[AnyLinear] = layer
        result = dataclasses.replace(
            result, attn_norm=attn_norm, qkv=qkv, o=o, mlp_norm=mlp_norm, gate_up=gate_up
        )
        size, down = hadamard_size(self._spec.intermediate_size), layer.down
        del layer  # the float weights but one, before the largest Hessian of all is made
        return dataclasses.replace(
            result, down=self._checked(down, seen.pop("down"), f"{name}.down", size)
        )

    def _reader(
        self, gain: Array | None, linear: Linear, x: Array, name: str
    ) -> tuple[Array | None, AnyLinear]:
        """The projection that reads the residual stream as ``x``, and the norm before it."""
        if not self._spec.post_norms:
            return gain, _quantise(linear, x)
        gain, linear, x = smooth_into_norm(gain, linear, x)
        return gain, self._checked(linear, x, name, hadamard_size(x.shape[-1]))

    def _checked(self, linear: Linear, x: Array, name: str, size: int = 0) -> AnyLinear:
        """W8A8 for inputs ``x`` [n, T, in], which are changed, unless the activations' error is
        too large."""
        mixed = Linear(linear.weight.copy() if size else linear.weight, linear.bias)
        _mix(mixed.weight, size)
        for window in x:
            _mix(window, size)
        if activation_error(mixed, x, _round_dynamically) <= LARGEST_ERROR:
            return _quantise(mixed, x, size)
        self.weights_only.append(name)
        return linear


def hadamard_size(features: int) -> int:
    """The largest power of two up to LARGEST_HADAMARD that divides ``features``."""
    return min(LARGEST_HADAMARD, features & -features)


def _mix(x: Array, size: int) -> None:
    """Multiply every ``size`` neighbours of the last axis of ``x`` [n, features] by the Hadamard
    matrix, in place."""
    if size:
        matrix = hadamard(size).astype(np.float32)
        for rows in pieces(*x.shape):
            x[rows] = (x[rows].reshape(-1, size) @ matrix).reshape(x[rows].shape)


def _smooth(gate_up: Linear, down: Linear, hidden: Array) -> None:
    """Move the range of ``hidden``'s channels into ``down``'s columns, exactly, in place."""
    factors = _factors(hidden, down.weight)
    up = slice(len(factors), None)  # gate rows stay
    gate_up.weight[up] /= factors[:, None]
    if gate_up.bias is not None:
        gate_up.bias[up] /= factors
    down.weight *= factors
    hidden /= factors


def smooth_into_norm(
    gain: Array | None, linear: Linear, x: Array
) -> tuple[Array | None, Linear, Array]:
    """Move the range of the channels of ``x``, which ``linear`` reads, from the gain of the norm
    before it into its columns, exactly; without a norm all stays as it is."""
    if gain is None:
        return None, linear, x
    factors = _factors(x, linear.weight)
    return gain / factors, Linear(linear.weight * factors, linear.bias), x / factors


def _factors(x: Array, weight: Array) -> Array:
    """What to divide each channel of ``x`` [n, T, in] by, so that ``weight`` shares its range."""
    activation = np.maximum(_largest(x.reshape(-1, x.shape[-1])), 1e-4)
    factors = activation**ALPHA / np.maximum(_largest(weight), 1e-4) ** (1 - ALPHA)
    result: Array = factors / np.exp(np.log(factors).mean())
    return result


def _largest(x: Array) -> Array:
    """The largest magnitude in each column of ``x`` [n, features]."""
    result: Array = np.maximum(x.max(axis=0), -x.min(axis=0))
    return result


def _quantise(linear: Linear, x: Array, size: int = 0) -> Int8Linear:
    scales = absmax_scales(linear.weight)
    codes = round_with_feedback(linear.weight, scales, x.reshape(-1, x.shape[-1]))
    return Int8Linear(codes, scales, linear.bias, size)


def activation_error(linear: Linear, x: Array, rounded: Callable[[Array], Array]) -> float:
    """Relative root mean square error of the output where each window of the inputs ``x``
    [n, T, in] is ``rounded``, the outlying first tokens apart."""
    later = slice(4, None) if x.shape[1] > 8 else slice(None)
    error = wanted = 0.0
    for window in x:
        wrong = (rounded(window) - window)[later] @ linear.weight.T
        error += float(np.square(wrong).sum(dtype=np.float64))
        wanted += float(np.square(window[later] @ linear.weight.T).sum(dtype=np.float64))
    return float(np.sqrt(np.float64(error) / np.float64(wanted)))


def _round_dynamically(x: Array) -> Array:
    """What DynamicQuantizeLinear makes of ``x``: uint8 over [min, max] with 0 included."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(x / scale) + zero, 0, 255)
    return np.asarray((codes - zero) * scale, dtype=np.float32)
