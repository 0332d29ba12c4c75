"""Rotary frequencies and their scaling types, following transformers' ``modeling_rope_utils``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.errors import UnsupportedModelError
from edgechat.export.pieces import pieces
from edgechat.export.spec import Array, RotarySpec

Frequencies = NDArray[np.float64]
PAIRS = 8


def rotary_spec(
    dim: int, theta: float, scaling: Mapping[str, Any] | None, context: int, capacity: int
) -> RotarySpec:
    """Frequencies for ``dim`` rotated features with base ``theta``.

    ``scaling`` is a config's ``rope_scaling`` (or ``rope_parameters``); ``context`` its
    ``max_position_embeddings``; ``capacity`` the longest position the bundle will meet, which
    fixes the types ``dynamic`` and ``longrope`` at export. Raises UnsupportedModelError for
    unknown types.
    """
    scaling = dict(scaling or {})
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    freq = 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    factor = 1.0
    try:
        if kind == "default":
            pass
        elif kind == "linear":
            freq = freq / float(scaling["factor"])
        elif kind == "dynamic":
            freq = _dynamic(dim, theta, float(scaling["factor"]), context, capacity)
        elif kind == "llama3":
            freq = _llama3(freq, scaling)
        elif kind == "yarn":
            freq, factor = _yarn(freq, dim, theta, scaling, context)
        elif kind == "longrope":
            freq, factor = _longrope(freq, scaling, context, capacity)
        elif kind == "per_frequency":  # GGUF stores llama3 scaling as one divisor a frequency
            freq = freq / np.asarray(scaling["factors"], dtype=np.float64)
        else:
            raise UnsupportedModelError(
                f"rotary scaling type {kind!r} is not supported; edgechat knows default, linear, "
                "dynamic, llama3, longrope and yarn."
            )
    except KeyError as missing:
        raise UnsupportedModelError(
            f"rotary scaling of type {kind!r} lacks the field {missing.args[0]!r} in the model's "
            "config; complete config.json."
        ) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UnsupportedModelError(
            f"rotary scaling of type {kind!r} has a value that makes no sense ({error})."
        ) from None
    if not np.isfinite(freq).all() or not math.isfinite(factor):
        raise UnsupportedModelError(f"rotary scaling of type {kind!r} gives infinite frequencies.")
    return RotarySpec(dim, tuple(float(f) for f in freq), factor, kind)


def padded(rotary: RotarySpec) -> RotarySpec:
    """``rotary`` with pairs that never turn added, up to a multiple of PAIRS.

    The attention kernel asks for that. Which features join is
    ``export/architectures/checkpoint.py``'s choice.
    """
    missing = -len(rotary.inv_freq) % PAIRS
    if missing and rotary.attention_factor != 1:
        raise UnsupportedModelError(
            f"{rotary.kind} rotary on {rotary.dim} features of a head is not supported; multiples "
            f"of {2 * PAIRS} are."
        )
    inv_freq = rotary.inv_freq + (0.0,) * missing
    return dataclasses.replace(rotary, dim=2 * len(inv_freq), inv_freq=inv_freq)


def rotary_tables(rotary: RotarySpec, positions: int) -> tuple[Array, Array]:
    """cos and sin, [positions, rotary dim / 2] float32, the attention factor folded in."""
    cos, sin = (np.empty((positions, len(rotary.inv_freq)), np.float32) for _ in range(2))
    for rows in pieces(*cos.shape):
        angles = np.outer(np.arange(rows.start, rows.stop, dtype=np.float64), rotary.inv_freq)
        cos[rows] = np.cos(angles) * rotary.attention_factor
        sin[rows] = np.sin(angles) * rotary.attention_factor
    return cos, sin


def _dynamic(dim: int, theta: float, factor: float, context: int, length: int) -> Frequencies:
    """NTK-aware base for ``length`` positions (unscaled while it fits the context)."""
    length = max(length, context)
    base = theta * ((factor * length / context) - (factor - 1)) ** (dim / (dim - 2))
    result: Frequencies = 1.0 / base ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    return result


def _llama3(freq: Frequencies, scaling: Mapping[str, Any]) -> Frequencies:
    """Llama 3.1: long wavelengths divided, short kept, smooth between."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / freq
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    result: Frequencies = (1 - smooth) * freq / factor + smooth * freq
    return result


def _longrope(
    freq: Frequencies, scaling: Mapping[str, Any], context: int, capacity: int
) -> tuple[Frequencies, float]:
    """LongRoPE (arXiv 2402.13753): a divisor a pair, from one of two lists by the length."""
    original = float(scaling.get("original_max_position_embeddings") or context)
    factor = float(scaling.get("factor") or context / original)
    name = "long_factor" if capacity > original else "short_factor"
    divisors = np.asarray(scaling[name], dtype=np.float64)
    if divisors.shape != freq.shape:
        raise ValueError(f"{divisors.size} divisors for {len(freq)} frequencies")
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return freq / divisors, float(attention)


def _yarn(
    freq: Frequencies, dim: int, theta: float, scaling: Mapping[str, Any], context: int
) -> tuple[Frequencies, float]:
    """YaRN (arXiv 2309.00071): interpolate slow pairs, keep fast ones, scale attention."""
    original = float(scaling.get("original_max_position_embeddings") or context)
    factor = float(scaling.get("factor") or context / original)

    def mscale(scale: float, weight: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        weight, weight_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
        if weight and weight_all:
            attention = mscale(factor, float(weight)) / mscale(factor, float(weight_all))
        else:
            attention = mscale(factor)

    def correction(rotations: float) -> float:
        turns = math.log(original / (rotations * 2 * math.pi))
        return dim * turns / (2 * math.log(theta))

    low = correction(float(scaling.get("beta_fast") or 32))
    high = correction(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    result: Frequencies = freq / factor * ramp + freq * (1 - ramp)
    return result, float(attention)
