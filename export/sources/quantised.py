"""Checkpoints that are quantised already: FP8 is dequantised, all else refused by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.base import at_most
from edgechat.export.sources.safetensors_files import SafetensorsFiles
from edgechat.export.spec import Array

FP8 = "F8_E4M3"
SCALES = ("_scale_inv", "_scale")  # both are factors, whatever the name says
OF_ACTIVATIONS = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".output_scale")
# Tensors that only packed weights have: GPTQ and AWQ, compressed-tensors, bitsandbytes, MXFP4.
PACKED = (".qweight", ".weight_packed", ".SCB", ".absmax", "_blocks")
REMEDY = "rounding it once more would cost twice: export the model it was made from"


def is_fp8(settings: dict[str, Any]) -> bool:
    """Whether a ``quantization_config`` says that weights are FP8 with scales; for every other
    kind UnsupportedModelError."""
    method = settings.get("quant_method")
    if method == "fp8":
        return True
    if method == "compressed-tensors" and settings.get("format") == "float-quantized":
        return True
    kind = settings.get("format") or settings.get("quant_algo") or settings.get("bits")
    bits = next((f"{n}-bit" for n in (4, 8) if settings.get(f"load_in_{n}bit")), kind)
    raise UnsupportedModelError(
        f"this checkpoint is already quantised ({method}{f', {bits}' if bits else ''}); {REMEDY}."
    )


def refuse_packed(names: Collection[str]) -> None:
    """UnsupportedModelError where tensors show what the config does not say."""
    packed = [name for name in names if name.endswith(PACKED)]
    if packed:
        raise UnsupportedModelError(
            f"this checkpoint is already quantised (it holds {at_most(packed, 1)}); {REMEDY}."
        )


class FP8Tensors:
    """``stored`` with FP8 weights multiplied by their scales: one for a tensor, for each row, or
    for each ``block`` of [rows, columns]. Scales of activations are left out; activations are
    not FP8 here."""

    def __init__(self, stored: SafetensorsFiles, block: Any) -> None:
        self._stored = stored
        sizes = block if isinstance(block, list) else []
        if block is not None and (len(sizes) != 2 or any(type(n) is not int for n in sizes)):
            raise SourceError(f"weight_block_size is {block!r}, not two whole numbers.")
        self._block = sizes
        known = stored.headers
        self._scales = {
            name: name + suffix
            for name, header in known.items()
            for suffix in SCALES
            if header.dtype == FP8 and name + suffix in known
        }

    def names(self) -> Collection[str]:
        scales = set(self._scales.values())
        return {n for n in self._stored.names() if n not in scales and not _is_of_activations(n)}

    def shape(self, name: str) -> tuple[int, ...]:
        scale = self._scales.get(name)
        if scale is None:
            return self._stored.shape(name)
        shape, of_scale = self._stored.headers[name].shape, self._stored.shape(scale)
        if len(shape) != 2 or of_scale not in self._fitting(shape):
            raise SourceError(
                f"{scale} of shape {list(of_scale)} does not fit {name} of shape {list(shape)}; "
                "download the model again."
            )
        return shape

    def read(self, name: str) -> Array:
        value = self._stored.read(name)
        scale = self._scales.get(name)
        if scale is None:
            return value
        factors = self._stored.read(scale)
        if factors.size == 1:
            value *= factors.item()
        elif factors.size == len(value):
            value *= factors.reshape(-1, 1)
        else:
            rows, columns = self._block
            for index, of_row in enumerate(factors):
                part = value[index * rows : (index + 1) * rows]
                part *= np.repeat(of_row, columns)[: part.shape[1]]
        return value

    def _fitting(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        if self._block:
            return [tuple(-(-n // b) for n, b in zip(shape, self._block, strict=True))]
        return [(), (1,), (1, 1), (shape[0],), (shape[0], 1)]


def _is_of_activations(name: str) -> bool:
    return name.endswith(OF_ACTIVATIONS)
