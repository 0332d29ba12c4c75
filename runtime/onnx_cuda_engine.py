"""The engine for ONNX Runtime on CUDA: weights and KV in GPU memory, bound by address.

Needs ``onnxruntime-gpu`` and ``cuda-bindings``. ONNX Runtime computes on a stream of its own and
waits for it; the copies here are on another one, waited for before ONNX Runtime runs again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

from edgechat.bundle import Bundle, Graph, Manifest
from edgechat.errors import EngineError
from edgechat.runtime.cuda import Box, Cuda
from edgechat.runtime.device_cache import (
    MOST_KEPT,
    MOST_LOGITS,
    MOST_TOKENS,
    DeviceCache,
    chunks,
    moves,
)
from edgechat.runtime.device_engine import DECODE, DeviceEngine, Shape
from edgechat.runtime.engine import Logits, Signals, Slots, Tokens
from edgechat.runtime.onnx_session import CUDA, check_provider, open_session, run


class OnnxCudaEngine(DeviceEngine):
    """See :class:`~edgechat.runtime.engine.Engine`; one row.

    ``capacity`` is the number of slots; ``importance`` fills ``signals``; ``sessions`` are another
    engine's, to share. Raises EngineError when the GPU, its memory or ONNX Runtime does not serve.
    """

    def __init__(
        self,
        bundle: Bundle,
        capacity: int,
        importance: bool = False,
        sessions: tuple[Any, Any] | None = None,
    ) -> None:
        check_provider(CUDA)
        super().__init__(bundle, capacity, importance)
        try:
            self._sessions = sessions or self._open_sessions()
            self._cache = DeviceCache(self._cuda, bundle.manifest, 1, capacity, MOST_KEPT)
            self._io = _Buffers(self._cuda, bundle, capacity)
            self._decode = self._bind(DECODE)
        except BaseException:
            self._cuda.close()
            raise
        self._prefill: tuple[Shape, Any] | None = None

    def most_tokens(self, all_logits: bool) -> int:
        return MOST_LOGITS if all_logits else MOST_TOKENS

    def step(self, tokens: Tokens, lengths: NDArray[np.int32], all_logits: bool = False) -> Logits:
        count = tokens.shape[1]
        binding, picked = self._decode, 1
        if count > 1:
            shape = count, all_logits
            if self._prefill is None or self._prefill[0] != shape:
                self._prefill = shape, self._bind(shape)
            binding, picked = self._prefill[1], count if all_logits else 1
        scored = count - 1 if self._importance else 0
        self._io.fill(tokens, int(lengths[0]), scored, picked)
        run(self._sessions[0], binding)
        if self._importance:
            self.signals = self._io.signals(count)
        return self._io.logits(picked)

    def compact(self, row: int, kept: Slots) -> None:
        first, shift = moves(kept)
        if first == len(kept):
            return
        self._io.fill_compact(kept[first:], shift)
        # In order: a slot only moves to the front, so no chunk overwrites what a later one reads.
        for begin, end in chunks(first, len(kept), MOST_KEPT):
            run(self._sessions[1], self._bind_compact(begin - first, end - begin))
            self._cache.take_scratch(row, begin, end - begin, end - begin)
            self._cuda.synchronize()

    def sibling(self) -> OnnxCudaEngine:
        """An engine with buffers of its own and the same weights in memory."""
        return OnnxCudaEngine(self._bundle, self.capacity, self._importance, self._sessions)

    def close(self) -> None:
        self._decode = self._prefill = None
        self._sessions = (None, None)
        super().close()

    def _open_sessions(self) -> tuple[Any, Any]:
        graph, compact = self._bundle.manifest.graph, self._bundle.manifest.compact
        if compact is None:
            raise EngineError("the bundle has no compact graph; export it again.")
        return tuple(open_session(self._bundle, one, CUDA) for one in (graph, compact))

    def _bind(self, shape: Shape) -> Any:
        count, all_logits = shape
        picked = count if all_logits else 1
        scored = count - 1 if self._importance else 0
        sizes = {
            "batch": 1,
            "tokens": count,
            "capacity": self.capacity,
            "output_positions": scored + picked,
            "logit_positions": picked,
            "targets": scored,
        }
        addresses = self._io.addresses(picked)
        addresses |= self._cache.addresses("past") | self._cache.addresses("present")
        binding = self._bound(0, self._bundle.manifest.graph, sizes, addresses)
        total = ort.OrtValue.ortvalue_from_numpy(self._io.total)  # attention wants it on the host
        binding.bind_ortvalue_input("total_sequence_length", total)
        return binding

    def _bind_compact(self, begin: int, count: int) -> Any:
        """For ``count`` of the listed slots, from the one at ``begin`` on."""
        graph = self._bundle.manifest.compact
        assert graph is not None
        addresses = self._io.compact_addresses(begin)
        addresses |= self._cache.addresses("past")
        addresses |= self._cache.scratch_addresses("kept", count)
        return self._bound(1, graph, {"kept_slots": count, "capacity": self.capacity}, addresses)

    def _bound(
        self, session: int, graph: Graph, sizes: dict[str, int], addresses: dict[str, int]
    ) -> Any:
        """A binding of the tensors that have an address."""
        layers = self._bundle.manifest.dims.num_layers
        binding = self._sessions[session].io_binding()
        for infos, bind in (
            (graph.inputs, binding.bind_input),
            (graph.outputs, binding.bind_output),
        ):
            for info in infos:
                shape = [sizes.get(size, size) for size in info.shape]
                for name in info.names(layers):
                    if name in addresses:
                        bind(name, CUDA.device, 0, np.dtype(info.dtype), shape, addresses[name])
        return binding


def check_precision(manifest: Manifest) -> None:
    """EngineError for a bundle in float32, which only the CPU runs."""
    if manifest.kv_dtype == "float32":
        raise EngineError(
            "an fp32 bundle for CUDA is there to compare with: ONNX Runtime has no float32 "
            "attention for GPUs; export with --precision fp16 or int8-weight."
        )


class _Staged:
    """Pinned memory and its twin on the GPU."""

    def __init__(self, cuda: Cuda, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._cuda, self._host = cuda, cuda.host(shape, dtype)
        self.array = self._host.array
        self.address = cuda.allocate(self.array.nbytes)

    def upload(self) -> None:
        self._cuda.copy(
            *(_line(at, self.array.nbytes) for at in (self.address, self._host.address))
        )

    def download(self, rows: int | None) -> NDArray[Any]:
        """Enqueue; the first ``rows`` (None: all) of the first axis, which are there later."""
        part = self.array[:rows]
        self._cuda.copy(*(_line(at, part.nbytes) for at in (self._host.address, self.address)))
        return part


def _line(address: int, size: int) -> Box:
    return Box(address, size, 1, (size, 1, 1))


class _Buffers:
    """What goes in and out of a step besides the cache."""

    def __init__(self, cuda: Cuda, bundle: Bundle, capacity: int) -> None:
        dims, self._cuda = bundle.manifest.dims, cuda
        inputs = {"input_ids": MOST_TOKENS, "targets": MOST_TOKENS, "output_index": 2 * MOST_TOKENS}
        inputs["seqlens_k"] = 1  # int32, in the space of an int64
        starts = dict(zip(inputs, np.cumsum([0, *inputs.values()]).tolist(), strict=False))
        self._in = _Staged(cuda, (sum(inputs.values()),), np.int64)
        self._views = {n: self._in.array[at : at + inputs[n]] for n, at in starts.items()}
        self._steps = np.arange(MOST_TOKENS)
        self.total = np.zeros((), dtype=np.int32)
        self._kept = _Staged(cuda, (2, capacity), np.int64)
        outputs: dict[str, tuple[int, ...]] = {"logits": (1, dims.vocab_size)}
        if bundle.manifest.has_importance:
            outputs["surprisal"] = (MOST_TOKENS,)
            outputs["hidden"] = (MOST_TOKENS, dims.hidden_size)
            outputs["attention_mass"] = (capacity,)
        self._out = {name: _Staged(cuda, shape, np.float32) for name, shape in outputs.items()}
        self._vocab = dims.vocab_size
        self._many_logits: _Staged | None = None  # made when evaluation first asks
        self._addresses = {name: self._in.address + at * 8 for name, at in starts.items()}
        self._addresses |= {name: staged.address for name, staged in self._out.items()}

    def addresses(self, picked: int) -> dict[str, int]:
        """Of what a step reads and gives that gives ``picked`` tokens' logits."""
        return {**self._addresses, "logits": self._logits(picked).address}

    def fill(self, tokens: Tokens, length: int, scored: int, picked: int) -> None:
        """Give the GPU what a step reads of ``tokens``: the first ``scored`` positions say how
        surprising the next token is, the last ``picked`` give logits."""
        count, views = tokens.shape[1], self._views
        views["input_ids"][:count] = tokens[0]
        views["targets"][:scored] = tokens[0, 1 : 1 + scored]
        views["output_index"][:scored] = self._steps[:scored]
        views["output_index"][scored : scored + picked] = self._steps[count - picked : count]
        views["seqlens_k"].view(np.int32)[0] = length + count - 1
        self.total[...] = length + count
        self._in.upload()
        self._cuda.synchronize()

    def fill_compact(self, kept: Slots, shift: Slots) -> None:
        self._kept.array[0, : len(kept)], self._kept.array[1, : len(kept)] = kept, shift
        self._kept.upload()
        self._cuda.synchronize()

    def compact_addresses(self, begin: int) -> dict[str, int]:
        """Of what ``fill_compact`` gave, from the slot at ``begin`` on."""
        row, at = self._kept.array.strides[0], self._kept.address + 8 * begin
        return {"kept": at, "shift": at + row}

    def logits(self, picked: int) -> Logits:
        """[1, picked, V]; a view that the next step overwrites, as those of ``signals``."""
        found = self._logits(picked).download(picked)
        self._cuda.synchronize()
        return found[None]

    def signals(self, count: int) -> Signals:
        rows = {"surprisal": count - 1, "hidden": count, "attention_mass": None}
        found = {name: self._out[name].download(used)[None] for name, used in rows.items()}
        self._cuda.synchronize()
        return Signals(**found)

    def _logits(self, picked: int) -> _Staged:
        if picked == 1:
            return self._out["logits"]
        if self._many_logits is None:
            self._many_logits = _Staged(self._cuda, (MOST_LOGITS, self._vocab), np.float32)
        return self._many_logits
