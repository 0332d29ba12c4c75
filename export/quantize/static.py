"""Static Q/DQ int8 for TensorRT: every scale is known at export.

Inputs get one scale for good, so projections behind a norm, whose range the rotation has evened
out, and O take int8 inputs (W8A8). The down-projection's inputs are hundreds of times larger on
the first token of a text than anywhere else: no one scale fits them, and they stay in float.

Where the residual stream could not be rotated (post-norms), what reads it is smoothed into the
norm before it, if there is one, and takes int8 inputs only where they move its output little;
the head then keeps float inputs.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from edgechat.export.quantize.activations import Calibrator
from edgechat.export.quantize.rounding import LEVELS, absmax_scales, round_with_feedback
from edgechat.export.quantize.w8a8 import LARGEST_ERROR, activation_error, smooth_into_norm
from edgechat.export.spec import (
    AnyLinear,
    Array,
    DecoderSpec,
    LayerWeights,
    Linear,
    ModelWeights,
    StaticInt8Linear,
)

SMALLEST = 2.0**-14  # the smallest normal float16: scales are stored in float16


class StaticWeights:
    """Quantises ``weights`` while the decoder asks for them; layers must come in order.

    ``float_inputs`` leaves the inputs of all projections in float, not only the down's.
    ``weights_only`` collects the names of projections whose inputs are.
    """

    def __init__(
        self, weights: ModelWeights, spec: DecoderSpec, calibrator: Calibrator, float_inputs: bool
    ) -> None:
        self._weights, self._spec, self._calibrator = weights, spec, calibrator
        self._float_inputs = float_inputs
        self.weights_only: list[str] = []

    def embedding(self) -> Array:
        return self._calibrator.embedding()

    def final_norm(self) -> Array:
        return self._weights.final_norm()

    def head(self) -> AnyLinear:
        x = self._calibrator.head_input(self.final_norm())
        return self._quantise(self._weights.head(), x, "head", not self._spec.post_norms)

    def layer(self, index: int) -> LayerWeights[AnyLinear]:
        layer, seen = self._calibrator.layer(index)
        name = f"layers.{index}"
        attn_norm, qkv = self._reader(layer.attn_norm, layer.qkv, seen.pop("qkv"), f"{name}.qkv")
        o = self._quantise(layer.o, seen.pop("o"), f"{name}.o")
        mlp_norm, gate_up = self._reader(
            layer.mlp_norm, layer.gate_up, seen.pop("gate_up"), f"{name}.gate_up"
        )
        result: LayerWeights[AnyLinear] = layer
        return dataclasses.replace(
            result,
            attn_norm=attn_norm,
            qkv=qkv,
            o=o,
            mlp_norm=mlp_norm,
            gate_up=gate_up,
            down=self._quantise(layer.down, seen.pop("down"), f"{name}.down", False),
        )

    def _reader(
        self, gain: Array | None, linear: Linear, x: Array, name: str
    ) -> tuple[Array | None, StaticInt8Linear]:
        """The projection that reads the residual stream as ``x``, and the norm before it."""
        if self._float_inputs or not self._spec.post_norms:
            return gain, self._quantise(linear, x, name)
        gain, linear, x = smooth_into_norm(gain, linear, x)
        scale = _input_scale(x)
        error = activation_error(linear, x, lambda window: np.rint(window / scale) * scale)
        return gain, self._quantise(linear, x, name, error <= LARGEST_ERROR)

    def _quantise(
        self, linear: Linear, x: Array, name: str, int8_inputs: bool = True
    ) -> StaticInt8Linear:
        """Int8 weights for inputs ``x`` [n, T, in], themselves in int8 or in float."""
        int8_inputs = int8_inputs and not self._float_inputs
        if not int8_inputs:
            self.weights_only.append(name)
        scales = half(absmax_scales(linear.weight))
        codes = round_with_feedback(linear.weight, scales, x.reshape(-1, x.shape[-1]))
        scale = _input_scale(x) if int8_inputs else None
        return StaticInt8Linear(codes, scales, linear.bias, input_scale=scale)


def half(scales: Array) -> Array:
    """The float16 values the graph will hold, in float32, so that codes are made for them."""
    return np.maximum(scales, SMALLEST).astype(np.float16).astype(np.float32)


def _input_scale(x: Array) -> float:
    return float(half(np.abs(x).max() / LEVELS))
