"""Static Q/DQ int8 for TensorRT: every scale is known at export.

Inputs get one scale for good, so projections behind a norm, whose range the rotation has evened
out, and O take int8 inputs (W8A8). The down-projection's inputs are hundreds of times larger on
the first token of a text than anywhere else: no one scale fits them, and they stay in float.
"""

from __future__ import annotations

import numpy as np

from edgechat.export.quantize.activations import Calibrator
from edgechat.export.quantize.rounding import LEVELS, absmax_scales, round_with_feedback
from edgechat.export.spec import (
    AnyLinear,
    Array,
    LayerWeights,
    Linear,
    ModelWeights,
    StaticInt8Linear,
)

SMALLEST = 2.0**-14  # the smallest normal float16: scales are stored in float16


class StaticWeights:
    """Quantises ``weights`` while the decoder asks for them; layers must come in order.

    ``weights_only`` leaves the inputs of all projections in float, not only the down's.
    """

    def __init__(self, weights: ModelWeights, calibrator: Calibrator, weights_only: bool) -> None:
        self._weights, self._calibrator = weights, calibrator
        self._weights_only = weights_only

    def embedding(self) -> Array:
        return self._calibrator.embedding()

    def final_norm(self) -> Array:
        return self._weights.final_norm()

    def head(self) -> AnyLinear:
        return self._quantise(self._weights.head(), self._calibrator.head_input(self.final_norm()))

    def layer(self, index: int) -> LayerWeights[AnyLinear]:
        layer, seen = self._calibrator.layer(index)
        return LayerWeights(
            attn_norm=layer.attn_norm,
            qkv=self._quantise(layer.qkv, seen.qkv),
            o=self._quantise(layer.o, seen.o),
            mlp_norm=layer.mlp_norm,
            gate_up=self._quantise(layer.gate_up, seen.gate_up),
            down=_quantise(layer.down, seen.down, None),
        )

    def _quantise(self, linear: Linear, x: Array) -> StaticInt8Linear:
        return _quantise(linear, x, None if self._weights_only else _input_scale(x))


def _quantise(linear: Linear, x: Array, input_scale: float | None) -> StaticInt8Linear:
    flat = x.reshape(-1, x.shape[-1])
    hessian = (flat.T @ flat).astype(np.float64)
    scales = half(absmax_scales(linear.weight))
    codes = round_with_feedback(linear.weight, scales, hessian)
    return StaticInt8Linear(codes, scales, linear.bias, input_scale=input_scale)


def half(scales: Array) -> Array:
    """The float16 values the graph will hold, in float32, so that codes are made for them."""
    return np.maximum(scales, SMALLEST).astype(np.float16).astype(np.float32)


def _input_scale(x: Array) -> float:
    return float(half(np.abs(x).max() / LEVELS))
