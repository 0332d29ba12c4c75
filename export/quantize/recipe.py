"""Which transformations a precision needs, put together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edgechat.export.quantize.activations import Calibrator, KVScales, ObservedWeights
from edgechat.export.quantize.blockwise import BLOCK
from edgechat.export.quantize.calibration import BUILT_IN, calibration_text, windows
from edgechat.export.quantize.rotate import SEED, RotatedWeights
from edgechat.export.quantize.static import StaticWeights
from edgechat.export.quantize.w8a8 import ALPHA, W8A8Weights
from edgechat.export.spec import AnyLinear, DecoderSpec, ModelWeights, Weights


class Recipe:
    """``weights`` and ``spec`` as the decoder should see them for a precision.

    Whatever rounds anything rotates first (exact); W8A8, static scales and the int8 KV cache
    calibrate while layers are read. ``static`` fixes every scale at export.
    """

    weights: Weights[AnyLinear]

    def __init__(
        self,
        weights: ModelWeights,
        spec: DecoderSpec,
        precision: str,
        kv: str,
        tokenizer: Tokenizer,
        bos: int | None,
        calibration: Path | None,
        static: bool = False,
    ) -> None:
        self.spec, self.weights = spec, weights
        self.kv_scales: list[KVScales] | None = None
        self._report: dict[str, Any] = {}
        self._int8: W8A8Weights | StaticWeights | None = None
        if precision in ("fp32", "fp16") and kv != "int8":
            return
        rotated = self.weights = RotatedWeights(weights, spec)
        self.spec = dataclasses.replace(spec, tied_embeddings=False, embedding_scale=1.0)
        steps = ["LayerNorm read as RMSNorm (mean taken out of the weights)"] * spec.layer_norm
        self._report["steps"] = steps
        steps.append(
            f"values rotated (seed {SEED}); not the residual stream, whose post-norms forbid it"
            if spec.post_norms
            else f"norms folded, residual stream and values rotated (seed {SEED})"
        )
        if precision == "int8-weight" and not static:
            steps.append(f"int8 weights, a scale for {BLOCK} inputs")
            if kv != "int8":
                return
        ids = windows(tokenizer, calibration_text(calibration), bos)
        self._report["calibration"] = BUILT_IN if calibration is None else calibration.name
        self._report["calibration_tokens"] = ids.size
        calibrator = Calibrator(rotated, self.spec, ids)
        self.weights = ObservedWeights(rotated, calibrator)
        if static:
            float_inputs = precision == "int8-weight"
            self.weights = self._int8 = StaticWeights(rotated, self.spec, calibrator, float_inputs)
            if precision == "int8" and spec.post_norms:
                steps.append("qkv and gate_up input smoothed into a norm before them")
            steps.append("int8 weights by row, rounded with error feedback")
            if precision == "int8":
                steps.append("int8 inputs, one scale each, but for those in weights_only")
        elif precision == "int8":
            self.weights = self._int8 = W8A8Weights(rotated, self.spec, calibrator)
            steps.append(
                f"down-projection input smoothed (alpha {ALPHA}) and mixed"
                if spec.gated
                else "down-projection input mixed; not smoothed, since the MLP has no gate"
            )
            if spec.post_norms:
                steps.append("qkv and gate_up input mixed, and smoothed into a norm before them")
            steps.append("int8 weights by row, rounded with error feedback")
            steps.append("int8 activations, a scale for each chunk of tokens")
        if kv == "int8":
            self.kv_scales = calibrator.kv_scales
            steps.append("int8 KV cache, static scales, one for each rotary pair of keys")

    def report(self) -> dict[str, Any]:
        """For the manifest, once all layers were read."""
        if self._int8 is None:
            return self._report
        return {**self._report, "weights_only": self._int8.weights_only}
