"""The engine for ONNX Runtime's CPU: buffers and bindings made once, KV written in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgechat.bundle import Bundle
from edgechat.errors import EngineError
from edgechat.runtime import huge_pages
from edgechat.runtime.cores import usable_cores
from edgechat.runtime.engine import KV, Logits, Signals, Slots, Tokens, check_capacity
from edgechat.runtime.onnx_session import CPU, open_session, run
from edgechat.runtime.rotation import rotate_keys, turns
from edgechat.runtime.telemetry.sysfs import meminfo

DIALECTS = ("ort_cpu", "ort_cuda")


class OnnxEngine:
    """See :class:`~edgechat.runtime.engine.Engine`. Runs bundles for the CPU, and those for CUDA,
    slowly.

    ``capacity`` is the number of slots a row holds; ``threads`` defaults to the usable cores;
    ``importance`` fills ``signals``; ``session`` is another engine's, to share. Raises
    EngineError when ONNX Runtime cannot load the graph, the memory is not there, or the bundle
    was exported without importance.
    """

    moves_keys = True

    def __init__(
        self,
        bundle: Bundle,
        capacity: int,
        rows: int = 1,
        threads: int | None = None,
        importance: bool = False,
        session: Any = None,
    ) -> None:
        manifest = bundle.manifest
        _check_dialect(manifest.graph.dialect)
        check_capacity(manifest, capacity, importance)
        self.rows, self.capacity = rows, capacity
        self.signals: Signals | None = None
        self._importance = importance
        self.vocab_size = manifest.dims.vocab_size
        self.hidden_size, self.num_heads = manifest.dims.hidden_size, manifest.dims.num_heads
        self.has_signals = manifest.has_importance
        self.has_positions = any(t.name == "position_ids" for t in manifest.graph.inputs)
        self.first_alone = manifest.precision == "int8"
        self._layers = manifest.dims.num_layers
        self._rotary = manifest.rotary
        self._bundle = bundle
        if session is None:
            before = huge_pages.anonymous_regions()
            session = open_session(bundle, manifest.graph, CPU, threads or usable_cores())
            huge_pages.gather(before)
        self._session = session
        dims = manifest.dims
        shape = (dims.num_layers, 2, rows, dims.num_kv_heads, capacity, dims.head_dim)
        check_memory(manifest.kv_bytes_per_slot * capacity * rows)
        self._kv = np.zeros(shape, dtype=manifest.kv_dtype)
        self._cache_values = [
            (f"{kind}.{layer}", ort.OrtValue.ortvalue_from_numpy(self._kv[layer, i]))
            for layer in range(dims.num_layers)
            for i, kind in enumerate(("key", "value"))
        ]
        self._decode = _Binding(self, 1, False)
        self._prefill: _Binding | None = None

    def most_tokens(self, all_logits: bool) -> int:
        return self.capacity

    def step(self, tokens: Tokens, lengths: NDArray[np.int32], all_logits: bool = False) -> Logits:
        count = tokens.shape[1]
        binding: _Binding | None = self._decode
        if count > 1:
            binding = self._prefill
            if binding is None or (binding.count, binding.all_logits) != (count, all_logits):
                binding = self._prefill = _Binding(self, count, all_logits)
        assert binding is not None
        logits = binding.run(tokens, lengths)
        if self._importance:
            self.signals = binding.signals
        return logits

    def sibling(self) -> OnnxEngine:
        """An engine with buffers of its own and the same weights in memory."""
        return OnnxEngine(
            self._bundle,
            self.capacity,
            self.rows,
            importance=self._importance,
            session=self._session,
        )

    def compact(self, row: int, kept: Slots) -> None:
        moved = kept != np.arange(len(kept))
        if not moved.any():
            return
        first = int(moved.argmax())
        shift = np.arange(first, len(kept)) - kept[first:]
        by_layer = turns(self._rotary, self._layers, shift)
        target = slice(first, len(kept))
        source: slice | Slots = kept[first:]
        if (shift == shift[0]).all():  # one block, as a window leaves it: no gathering
            source = slice(int(kept[first]), int(kept[-1]) + 1)
        for layer in range(self._layers):
            keys, values = self._kv[layer, 0, row], self._kv[layer, 1, row]
            keys[:, target] = rotate_keys(keys[:, source], *by_layer[layer])
            values[:, target] = values[:, source]

    def read(self, row: int, start: int, count: int) -> KV:
        return self._kv[:, :, row, :, start : start + count].copy()

    def write(self, row: int, start: int, kv: KV, origin: int) -> None:
        count = kv.shape[3]
        target = self._kv[:, :, row, :, start : start + count]
        if start == origin:
            target[:] = kv  # as it is: turning clips int8 codes
            return
        by_layer = turns(self._rotary, self._layers, np.array([start - origin]))
        for place, layer, turn in zip(target, kv, by_layer, strict=True):  # no copy of it all
            place[0], place[1] = rotate_keys(layer[0], *turn), layer[1]

    def close(self) -> None:
        self._decode = self._prefill = None  # type: ignore[assignment]
        self._cache_values = []
        self._kv = np.zeros((0,) * 6, dtype=np.float32)
        self._session = None

    def __del__(self) -> None:
        self.close()


class _Binding:
    """Fixed input, output and cache buffers for steps of one shape [rows, count]."""

    def __init__(self, engine: OnnxEngine, count: int, all_logits: bool) -> None:
        self.count, self.all_logits = count, all_logits
        rows = engine.rows
        picked = count if all_logits else 1
        scored = count - 1 if engine._importance else 0
        self._session = engine._session
        self._tokens = np.zeros((rows, count), dtype=np.int64)
        self._positions = np.zeros((rows, count), dtype=np.int64)
        self._last_slot = np.zeros(rows, dtype=np.int32)
        self._total = np.zeros((), dtype=np.int32)
        self._offsets = np.arange(count, dtype=np.int64)
        index = np.concatenate([np.arange(scored), np.arange(count - picked, count)])
        self._index = np.tile(index[None, :, None], (rows, 1, 1))
        self._targets = np.zeros((rows, scored), dtype=np.int64)
        self._logits = np.empty((rows, picked, engine.vocab_size), dtype=np.float32)
        binding = self._session.io_binding()
        inputs = {
            "input_ids": self._tokens,
            "seqlens_k": self._last_slot,
            "total_sequence_length": self._total,
            "output_index": self._index,
        }
        if engine.has_positions:  # else they are the slots anyway
            inputs["position_ids"] = self._positions
        outputs = {"logits": self._logits}
        if engine.has_signals:
            inputs["targets"] = self._targets
            self.signals = Signals(
                surprisal=np.empty((rows, scored), dtype=np.float32),
                hidden=np.empty((rows, count, engine.hidden_size), dtype=np.float32),
                attention_mass=np.empty((rows, engine.capacity), dtype=np.float32),
            )
            outputs.update(vars(self.signals))
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, value in engine._cache_values:
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)
        self._binding = binding

    def run(self, tokens: Tokens, lengths: NDArray[np.int32]) -> Logits:
        self._tokens[:] = tokens
        self._targets[:] = tokens[:, 1 : 1 + self._targets.shape[1]]
        np.add(lengths[:, None], self._offsets, out=self._positions)
        np.add(lengths, self.count - 1, out=self._last_slot)
        self._total[...] = self._last_slot.max() + 1
        run(self._session, self._binding)
        return self._logits


def _check_dialect(dialect: str) -> None:
    if dialect in DIALECTS:
        return
    remedy = "update edgechat, or export the bundle again with this version."
    if dialect.startswith("tensorrt"):
        remedy = "it is for TensorRT on a Jetson: export with --target cpu to run it here."
    raise EngineError(
        f"the bundle speaks the dialect {dialect!r}, which this engine cannot run; {remedy}"
    )


def check_memory(needed: int) -> None:
    """EngineError when the system has less memory left than the KV cache will take."""
    available = meminfo().get("MemAvailable")  # None if not Linux: allocation itself has to tell
    if available is not None and needed > available:
        raise EngineError(
            f"the KV cache needs {needed >> 20:,} MiB but only {available >> 20:,} MiB of memory "
            "are free; choose a smaller window."
        )
