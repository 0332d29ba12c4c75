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
        gate_up, down, smooth = layer.gate_up, layer.down, seen.down
        if self._spec.gated:
            gate_up, down, smooth = _smooth(gate_up, down, smooth)
        size = hadamard_size(smooth.shape[-1])
        name = f"layers.{index}"
        attn_norm, qkv = self._reader(layer.attn_norm, layer.qkv, seen.qkv, f"{name}.qkv")
        mlp_norm, gate = self._reader(layer.mlp_norm, gate_up, seen.gate_up, f"{name}.gate_up")
        result: LayerWeights[AnyLinear] = layer
        return dataclasses.replace(
            result,
            attn_norm=attn_norm,
            qkv=qkv,
            o=self._checked(layer.o, seen.o, f"{name}.o"),
            mlp_norm=mlp_norm,
            gate_up=gate,
            down=self._checked(down, smooth, f"{name}.down", size),
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
        """W8A8 for inputs ``x`` [n, T, in], unless the activations' error is too large."""
        mixed = Linear(_mix(linear.weight, size), linear.bias)
        x = _mix(x, size)
        if activation_error(mixed, x, _round_dynamically) <= LARGEST_ERROR:
            return _quantise(mixed, x, size)
        self.weights_only.append(name)
        return linear


def hadamard_size(features: int) -> int:
    """The largest power of two up to LARGEST_HADAMARD that divides ``features``."""
    return min(LARGEST_HADAMARD, features & -features)


def _mix(x: Array, size: int) -> Array:
    """Multiply every ``size`` neighbours of the last axis by the Hadamard matrix."""
    if not size:
        return x
    matrix = hadamard(size).astype(np.float32)
    result: Array = (x.reshape(-1, size) @ matrix).reshape(x.shape)
    return result


def _smooth(gate_up: Linear, down: Linear, hidden: Array) -> tuple[Linear, Linear, Array]:
    """Move the range of ``hidden``'s channels into ``down``'s columns, exactly."""
    factors = _factors(hidden, down.weight)
    rows = np.concatenate([np.ones_like(factors), factors])  # gate rows stay
    bias = None if gate_up.bias is None else gate_up.bias / rows
    return (
        Linear(gate_up.weight / rows[:, None], bias),
        Linear(down.weight * factors, down.bias),
        hidden / factors,
    )


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
    flat = x.reshape(-1, x.shape[-1])
    activation = np.maximum(np.abs(flat).max(axis=0), 1e-4)
    factors = activation**ALPHA / np.maximum(np.abs(weight).max(axis=0), 1e-4) ** (1 - ALPHA)
    result: Array = factors / np.exp(np.log(factors).mean())
    return result


def _quantise(linear: Linear, x: Array, size: int = 0) -> Int8Linear:
    flat = x.reshape(-1, x.shape[-1])
    hessian = (flat.T @ flat).astype(np.float64)
    scales = absmax_scales(linear.weight)
    return Int8Linear(
        round_with_feedback(linear.weight, scales, hessian), scales, linear.bias, size
    )


def activation_error(linear: Linear, x: Array, rounded: Callable[[Array], Array]) -> float:
    """Relative root mean square error of the output where each window of the inputs ``x``
    [n, T, in] is ``rounded``, the outlying first tokens apart."""
    quantised = np.stack([rounded(window) for window in x])
    later = slice(4, None) if x.shape[1] > 8 else slice(None)
    wanted = x[:, later] @ linear.weight.T
    error = (quantised - x)[:, later] @ linear.weight.T
    return float(np.sqrt(np.square(error).mean() / np.square(wanted).mean()))


def _round_dynamically(x: Array) -> Array:
    """What DynamicQuantizeLinear makes of ``x``: uint8 over [min, max] with 0 included."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(x / scale) + zero, 0, 255)
    return np.asarray((codes - zero) * scale, dtype=np.float32)
