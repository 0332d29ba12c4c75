"""KV buffers in a GPU's memory: one slab, of which every layer binds its part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgechat.bundle import Manifest
from edgechat.errors import EngineError
from edgechat.runtime.cuda import ALIGNMENT, Box, Cuda
from edgechat.runtime.engine import KV, Slots
from edgechat.runtime.rotation import move_keys, turns

# What an engine for GPUs does in one go at most: its buffers are made once.
MOST_TOKENS = 256  # of a prefill step
MOST_LOGITS = 16  # a step gives, where more than the last are asked for: in evaluation only
MOST_KEPT = 256  # slots the compact graph moves


class DeviceCache:
    """Keys and values [layers, 2, rows, H_kv, C, D] on the GPU, and a ``scratch`` of the same
    layout for one row and ``scratch_slots`` slots.

    Since layers lie behind each other, a stretch of slots of all layers is one copy. Where keys
    or values of a layer would not end at a multiple of ALIGNMENT, unused lines follow them.
    """

    def __init__(
        self, cuda: Cuda, manifest: Manifest, rows: int, capacity: int, scratch_slots: int
    ) -> None:
        dims = manifest.dims
        self._cuda, self._dtype = cuda, np.dtype(manifest.kv_dtype)
        self._layers, self._heads = dims.num_layers, dims.num_kv_heads
        self._capacity, self._scratch_slots = capacity, scratch_slots
        self._slot_bytes = dims.head_dim * self._dtype.itemsize  # of one head
        self._head_dim, self._rotary = dims.head_dim, manifest.rotary
        self._lines = _aligned_lines(rows * self._heads, capacity * self._slot_bytes)
        tensors = 2 * self._layers
        self._slab = cuda.allocate(tensors * self._lines * capacity * self._slot_bytes)
        most = max(n * self._scratch_lines(n) for n in range(1, scratch_slots + 1))
        self._scratch = cuda.allocate(tensors * most * self._slot_bytes)
        staged = tensors * self._heads * scratch_slots * self._slot_bytes
        self._host = cuda.host((staged,), np.uint8)

    def addresses(self, prefix: str) -> dict[str, int]:
        """Where the keys and values of each layer, [rows, H_kv, C, D], begin, by the names that
        graphs have for them: PREFIX_key.0, PREFIX_value.0, ..."""
        return self._named(prefix, self._slab, self._lines * self._capacity)

    def scratch_addresses(self, prefix: str, slots: int) -> dict[str, int]:
        """As ``addresses``, of the scratch when it holds [1, H_kv, ``slots``, D] for each."""
        return self._named(prefix, self._scratch, self._scratch_lines(slots) * slots)

    def _named(self, prefix: str, start: int, lines: int) -> dict[str, int]:
        kinds = [f"{kind}.{layer}" for layer in range(self._layers) for kind in ("key", "value")]
        part = lines * self._slot_bytes
        return {f"{prefix}_{kind}": start + i * part for i, kind in enumerate(kinds)}

    def take_scratch(self, row: int, start: int, count: int, slots: int) -> None:
        """Enqueue: the first ``count`` of the scratch's ``slots`` slots go to those from
        ``start`` on."""
        source = self._packed(self._scratch, count, slots, self._scratch_lines(slots))
        self._cuda.copy(self._stretch(row, start, count), source)

    def read(self, row: int, start: int, count: int) -> KV:
        """A copy of ``count`` slots, [layers, 2, H_kv, count, D]."""
        result = np.empty(self._shape(count), dtype=self._dtype)
        for begin in range(0, count, self._scratch_slots):
            part = min(self._scratch_slots, count - begin)
            self._cuda.copy(
                self._packed(self._host.address, part, part, self._heads),
                self._stretch(row, start + begin, part),
            )
            self._cuda.synchronize()
            result[..., begin : begin + part, :] = self._staged(part)
        return result

    def write(self, row: int, start: int, kv: KV, origin: int) -> None:
        """Put ``kv``, as ``read`` gave it for the slots from ``origin`` on, to those from
        ``start`` on; its keys are rotated on the way."""
        if kv.shape != self._shape(kv.shape[3]) or start + kv.shape[3] > self._capacity:
            raise EngineError("keys and values of another shape than the cache's.")
        by_layer = turns(self._rotary, self._layers, np.array([start - origin]))
        for begin in range(0, kv.shape[3], self._scratch_slots):
            part = min(self._scratch_slots, kv.shape[3] - begin)
            self._cuda.synchronize()  # the staging memory may still be read
            piece = kv[..., begin : begin + part, :]
            self._staged(part)[:] = piece if start == origin else move_keys(piece, by_layer)
            self._cuda.copy(
                self._stretch(row, start + begin, part),
                self._packed(self._host.address, part, part, self._heads),
            )

    def _staged(self, count: int) -> KV:
        size = 2 * self._layers * self._heads * count * self._slot_bytes
        return self._host.array[:size].view(self._dtype).reshape(self._shape(count))

    def _shape(self, count: int) -> tuple[int, int, int, int, int]:
        return self._layers, 2, self._heads, count, self._head_dim

    def _stretch(self, row: int, start: int, count: int) -> Box:
        """``count`` slots of the cache from ``start`` on, of all layers and heads of a row."""
        row_bytes = self._heads * self._capacity * self._slot_bytes
        return Box(
            self._slab + row * row_bytes + start * self._slot_bytes,
            self._capacity * self._slot_bytes,
            self._lines,
            (count * self._slot_bytes, self._heads, 2 * self._layers),
        )

    def _packed(self, address: int, count: int, slots: int, lines: int) -> Box:
        """The first ``count`` slots of [layers, 2, ``lines``, ``slots``, D] at ``address``, of
        lines as many as there are heads."""
        extent = (count * self._slot_bytes, self._heads, 2 * self._layers)
        return Box(address, slots * self._slot_bytes, lines, extent)

    def _scratch_lines(self, slots: int) -> int:
        return _aligned_lines(self._heads, slots * self._slot_bytes)


def _aligned_lines(lines: int, size: int) -> int:
    """The least number, not below ``lines``, of lines of ``size`` bytes that end aligned."""
    step = ALIGNMENT // math.gcd(ALIGNMENT, size)
    return -(-lines // step) * step


def moves(kept: Slots) -> tuple[int, Slots]:
    """The first of ``kept`` that is not in its place already (len(kept): all are), and how many
    positions each from there on moves to the front."""
    moved = kept != np.arange(len(kept))
    first = int(moved.argmax()) if moved.any() else len(kept)
    return first, kept[first:] - np.arange(first, len(kept))


def chunks(start: int, stop: int, most: int) -> Sequence[tuple[int, int]]:
    """start … stop - 1 in stretches [begin, end) of at most ``most``."""
    return [(begin, min(begin + most, stop)) for begin in range(start, stop, most)]
