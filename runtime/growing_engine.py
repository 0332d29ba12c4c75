"""The engine for graphs whose cache grows: past goes in, past and new come out, as from optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgechat.bundle import Bundle
from edgechat.runtime.cores import usable_cores
from edgechat.runtime.engine import KV, Logits, Signals, Slots, Tokens, check_capacity
from edgechat.runtime.onnx_engine import check_memory
from edgechat.runtime.onnx_session import CPU, open_session, run


class GrowingEngine:
    """See :class:`~edgechat.runtime.engine.Engine`; it has one row.

    Two slabs are allocated once. A step reads the past from one and writes past and new to the
    other, each layer's keys and values packed as [1, H, length, D], and the two change places.
    Where the graph turns keys nobody knows, so they are never moved. Raises EngineError when ONNX
    Runtime cannot load the graph, the memory is not there, or importance is asked for.
    """

    rows = 1
    first_alone = False
    moves_keys = False
    signals: Signals | None = None

    def __init__(
        self,
        bundle: Bundle,
        capacity: int,
        threads: int | None = None,
        importance: bool = False,
        session: Any = None,
    ) -> None:
        manifest = bundle.manifest
        check_capacity(manifest, capacity, importance)
        dims = manifest.dims
        self.capacity, self.vocab_size = capacity, dims.vocab_size
        self.hidden_size, self.num_heads = dims.hidden_size, dims.num_heads
        self._bundle, self._layers = bundle, dims.num_layers
        self._heads, self._head_dim = dims.num_kv_heads, dims.head_dim
        self._session = session or open_session(
            bundle, manifest.graph, CPU, threads or usable_cores(), fuse=True
        )
        check_memory(manifest.kv_bytes_per_slot * capacity)
        row = self._heads * self._head_dim
        self._slabs = np.zeros((2, dims.num_layers, 2, capacity * row), dtype=manifest.kv_dtype)
        self._slab = self._length = 0  # which one holds the cache, and how many slots
        self._logits = np.empty(0, dtype=np.float32)
        self._has_positions = any(t.name == "position_ids" for t in manifest.graph.inputs)
        self._past, self._present = (
            [t.names(dims.num_layers) for t in tensors if "{i}" in t.name]
            for tensors in (manifest.graph.inputs, manifest.graph.outputs)
        )

    def most_tokens(self, all_logits: bool) -> int:
        return self.capacity

    def step(self, tokens: Tokens, lengths: NDArray[np.int32], all_logits: bool = False) -> Logits:
        count = tokens.shape[1]
        self._cut(int(lengths[0]))
        past, total = self._length, self._length + count
        inputs = {"input_ids": tokens, "attention_mask": np.ones((1, total), dtype=np.int64)}
        if self._has_positions:
            inputs["position_ids"] = np.arange(past, total, dtype=np.int64)[None]
        if len(self._logits) < count * self.vocab_size:
            self._logits = np.empty(count * self.vocab_size, dtype=np.float32)
        logits = self._logits[: count * self.vocab_size].reshape(1, count, -1)
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(logits))
        for kind in range(2):
            for layer in range(self._layers):
                before = self._packed(self._slab, past)[layer, kind, None]
                after = self._packed(1 - self._slab, total)[layer, kind, None]
                value = ort.OrtValue.ortvalue_from_numpy
                binding.bind_ortvalue_input(self._past[kind][layer], value(before))
                binding.bind_ortvalue_output(self._present[kind][layer], value(after))
        run(self._session, binding)
        self._slab, self._length = 1 - self._slab, total
        return logits if all_logits else logits[:, -1:]

    def compact(self, row: int, kept: Slots) -> None:
        assert (kept == np.arange(len(kept))).all(), "keys cannot be moved"
        self._cut(len(kept))

    def read(self, row: int, start: int, count: int) -> KV:
        return self._packed(self._slab, self._length)[..., start : start + count, :].copy()

    def write(self, row: int, start: int, kv: KV, origin: int) -> None:
        assert start == origin, "keys cannot be moved"
        self._cut(start)
        old, self._slab = self._packed(self._slab, start), 1 - self._slab
        self._length = start + kv.shape[3]
        new = self._packed(self._slab, self._length)
        new[..., :start, :], new[..., start:, :] = old, kv

    def sibling(self) -> GrowingEngine:
        return GrowingEngine(self._bundle, self.capacity, session=self._session)

    def close(self) -> None:
        self._slabs, self._session = self._slabs[:0], None

    def _packed(self, slab: int, length: int) -> NDArray[Any]:
        """A view of the first ``length`` slots, [layers, 2, H, length, D]."""
        size = self._heads * length * self._head_dim
        shape = (self._layers, 2, self._heads, length, self._head_dim)
        packed: NDArray[Any] = self._slabs[slab, :, :, :size].reshape(shape)
        return packed

    def _cut(self, length: int) -> None:
        """Forget the slots from ``length`` on."""
        if length == self._length:
            return
        assert length < self._length
        self._packed(1 - self._slab, length)[:] = self._packed(self._slab, self._length)[
            ..., :length, :
        ]
        self._slab, self._length = 1 - self._slab, length
