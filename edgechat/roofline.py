"""The most tokens a second a device can give, from its bandwidth and compute: never a measurement.

The roofline model (Williams, Waterman and Patterson, 2009, doi 10.1145/1498765.1498785): work takes
at least as long as reading what it reads, and as computing what it computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgechat.bundle import Manifest
from edgechat.device import Device
from edgechat.memory_plan import WEIGHT_BYTES, MemoryPlan, prefill_chunk
from edgechat.settings import Settings

SHORT_HISTORY = 128  # tokens
MEASURED = "On a processor 40 to 65 % of the decode limit were measured (README, SmolLM2 int8)."
UNMEASURED = "No GPU has run such a bundle yet: how much of the limit is reached is not known."


@dataclass(frozen=True)
class Limit:
    """``tokens_per_second`` at most, and how that comes about."""

    name: str
    tokens_per_second: float
    arithmetic: str


def limits(
    manifest: Manifest, settings: Settings, plan: MemoryPlan, device: Device
) -> tuple[Limit, ...]:
    """For decoding and prefill; () where the device does not say its bandwidth."""
    return tuple(_limits(manifest, settings, plan, device))


def decode_limit(bytes_per_token: int, bandwidth_gb_per_second: float) -> float:
    """Tokens/s of steps that each read ``bytes_per_token`` once."""
    return bandwidth_gb_per_second * 1e9 / bytes_per_token


def _limits(
    manifest: Manifest, settings: Settings, plan: MemoryPlan, device: Device
) -> Iterator[Limit]:
    bandwidth = device.bandwidth_gb_per_second
    if bandwidth is None:
        return
    weights = manifest.weight_bytes_per_token
    for slots, name in _histories(plan).items():
        cache = slots * plan.kv_bytes_per_slot
        yield Limit(
            name,
            decode_limit(weights + cache, bandwidth),
            f"{bandwidth:g} GB/s / ({weights / 1e6:,.1f} MB of weights + {cache / 1e6:,.1f} MB of "
            f"{slots:,} slots)",
        )
    if plan.on_gpu and device.int8_tops is not None and device.fp16_tflops is not None:
        yield _prefill(manifest, settings, plan, device, bandwidth)


def _histories(plan: MemoryPlan) -> dict[int, str]:
    """Slots a decode step reads. TensorRT's reads all there are, however few are filled."""
    if plan.dialect.startswith("tensorrt"):
        return {plan.allocated_slots: "decode"}
    most = {plan.slots: f"decode behind {plan.slots:,} tokens"}
    few = {SHORT_HISTORY: f"decode behind {SHORT_HISTORY} tokens"}
    return {**few, **most} if plan.slots > SHORT_HISTORY else most


def _prefill(
    manifest: Manifest, settings: Settings, plan: MemoryPlan, device: Device, bandwidth: float
) -> Limit:
    """Of full chunks that fill the cache; the head runs once a prompt and is left out."""
    assert device.int8_tops is not None and device.fp16_tflops is not None
    dims, chunk = manifest.dims, prefill_chunk(manifest, settings)
    tensorrt = plan.dialect.startswith("tensorrt")
    weights = manifest.weight_bytes_per_token / WEIGHT_BYTES[manifest.precision]
    products = 2 * (weights - dims.vocab_size * dims.hidden_size)
    read_slots = plan.allocated_slots if tensorrt else plan.slots / 2
    attention = 4 * dims.num_layers * dims.num_heads * dims.head_dim * read_slots
    # Only W8A8 in TensorRT computes in int8, and there not the down-projections.
    down = 2 * dims.num_layers * dims.intermediate_size * dims.hidden_size
    int8 = products - down if tensorrt and manifest.precision == "int8" else 0.0
    fp16 = products + attention - int8
    compute = int8 / (device.int8_tops * 1e12) + fp16 / (device.fp16_tflops * 1e12)
    read = manifest.weight_bytes_per_token + read_slots * plan.kv_bytes_per_slot
    reading = read / chunk / (bandwidth * 1e9)
    if reading > compute:
        why = f"{chunk} tokens x {bandwidth:g} GB/s / {read / 1e6:,.1f} MB a chunk reads"
    else:
        parts = [
            f"{amount / 1e9:,.2f} / {rate:,.0f} {unit}"
            for amount, rate, unit in (
                (int8, device.int8_tops, "INT8 TOPS"),
                (fp16, device.fp16_tflops, "FP16 TFLOPS"),
            )
            if amount
        ]
        why = f"1 / (billions of operations a token: {' + '.join(parts)})"
    return Limit("prefill", 1 / max(compute, reading), why)
