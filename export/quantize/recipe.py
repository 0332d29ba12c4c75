"""Which transformations a precision needs, put together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edgechat.export.quantize.activations import Calibrator, KVScales, ObservedWeights
from edgechat.export.quantize.calibration import BUILT_IN, calibration_text, windows
from edgechat.export.quantize.rotate import SEED, RotatedWeights
from edgechat.export.quantize.w8a8 import ALPHA, W8A8Weights
from edgechat.export.spec import AnyLinear, DecoderSpec, ModelWeights, Weights


class Recipe:
    """``weights`` and ``spec`` as the decoder should see them for a precision.

    W8A8 and the int8 KV cache rotate first (exact) and calibrate while layers are read;
    weight-only int8 and fp32 leave the weights alone.
    """

    weights: Weights[AnyLinear]

    def __init__(
        self,
        weights: ModelWeights,
        spec: DecoderSpec,
        precision: str,
        kv: str,
        tokenizer: Tokenizer,
        calibration: Path | None,
    ) -> None:
        self.spec, self.weights = spec, weights
        self.kv_scales: list[KVScales] | None = None
        self._steps: list[str] = []
        self._source: str | None = None
        self._w8a8: W8A8Weights | None = None
        if precision != "fp32":
            self._steps.append("int8 weights, a scale for 32 inputs")
        if precision != "int8" and kv == "fp32":
            return
        ids = windows(tokenizer, calibration_text(calibration))
        self._source = BUILT_IN if calibration is None else calibration.name
        rotated = RotatedWeights(weights, spec)
        self.spec = dataclasses.replace(spec, tied_embeddings=False)
        calibrator = Calibrator(rotated, self.spec, ids)
        self._steps = [f"norms folded, residual stream and values rotated (seed {SEED})"]
        self._tokens = ids.size
        if precision == "int8":
            self.weights = self._w8a8 = W8A8Weights(rotated, calibrator)
            self._steps.append(f"down-projection input smoothed (alpha {ALPHA}) and mixed")
            self._steps.append("int8 weights by row, rounded with error feedback")
            self._steps.append("int8 activations, a scale for each chunk of tokens")
        else:
            self.weights = ObservedWeights(rotated, calibrator)
        if kv == "int8":
            self.kv_scales = calibrator.kv_scales
            self._steps.append("int8 KV cache, static scales, one for each rotary pair of keys")

    def report(self) -> dict[str, Any]:
        """For the manifest, once all layers were read."""
        report: dict[str, Any] = {"steps": self._steps} if self._steps else {}
        if self._source is not None:
            report |= {"calibration": self._source, "calibration_tokens": self._tokens}
        if self._w8a8 is not None:
            report["weights_only"] = self._w8a8.weights_only
        return report
