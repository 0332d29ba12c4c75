"""The TensorRT engine: KV in GPU memory, one stream, one CUDA graph for each shape in use.

Needs ``tensorrt`` and ``cuda-bindings``. What the CPU gives and takes lies in pinned memory that
the GPU reads and writes itself: no copies but those of the cache.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgechat.bundle import Bundle
from edgechat.errors import EngineError
from edgechat.runtime.cuda import Cuda, Graph, HostArray
from edgechat.runtime.device_cache import MOST_LOGITS, DeviceCache, chunks, moves
from edgechat.runtime.device_engine import DECODE, DeviceEngine, Shape
from edgechat.runtime.engine import Logits, Signals, Slots, Tokens
from edgechat.runtime.tensorrt.build import most_kept, most_tokens
from edgechat.runtime.tensorrt.context import Context, LoadedEngine, shapes_of
from edgechat.runtime.tensorrt.engines import Engines

logger = logging.getLogger("edgechat")
MOST_PROGRAMS = 8  # shapes that keep a context and a CUDA graph of their own


@dataclass
class _Program:
    """A context bound for one shape, and the CUDA graph it becomes when it is used again."""

    context: Context
    graph: Graph | None = None
    ran: bool = False


class TensorRtEngine(DeviceEngine):
    """See :class:`~edgechat.runtime.engine.Engine`; one row.

    ``engines`` were built for this machine (:mod:`edgechat.runtime.tensorrt.engines`); their cache
    is as long as the bundle's, of which ``capacity`` slots are used. ``importance`` fills
    ``signals``; ``loaded`` is another engine's, to share. Raises EngineError when the GPU, its
    memory or TensorRT does not serve.
    """

    def __init__(
        self,
        bundle: Bundle,
        engines: Engines,
        capacity: int,
        importance: bool = False,
        loaded: tuple[LoadedEngine, LoadedEngine] | None = None,
    ) -> None:
        self._programs: OrderedDict[Shape, _Program] = OrderedDict()  # close needs it at once
        super().__init__(bundle, capacity, importance)
        self._engines = engines
        self._most, self._most_kept = most_tokens(bundle), most_kept(bundle)
        self._in_place = any(t.name == "present_key.{i}" for t in bundle.manifest.graph.outputs)
        self._seen: set[Shape] = set()
        self._records = True
        try:
            self._load(loaded)
        except BaseException:
            self.close()
            raise

    def _load(self, loaded: tuple[LoadedEngine, LoadedEngine] | None) -> None:
        manifest = self._bundle.manifest
        graph, compact, layers = manifest.graph, manifest.compact, manifest.dims.num_layers
        assert compact is not None
        if loaded is None:
            loaded = LoadedEngine(self._engines.decoder), LoadedEngine(self._engines.compact)
            for one, contract in zip(loaded, (graph, compact), strict=True):
                one.check((*contract.inputs, *contract.outputs), layers)
        self._loaded = loaded
        staged = max(self._most, self._most_kept)
        self._cache = DeviceCache(self._cuda, manifest, 1, manifest.max_capacity, staged)
        size = max(one.scratch for one in loaded)
        self._scratch = self._cuda.allocate(size), size
        self._io = _HostIO(self._cuda, self._bundle, self._most, manifest.has_importance)
        # A context for shapes that were never used before: it is bound again each time.
        self._any = Context(self._cuda, loaded[0], 1, self._scratch)
        self._compact = Context(self._cuda, loaded[1], 0, self._scratch)
        self._kept, self._shift = (self._cuda.host((self._most_kept,), np.int64) for _ in range(2))
        self._cuda.synchronize()

    def most_tokens(self, all_logits: bool) -> int:
        return min(self._most, MOST_LOGITS) if all_logits else self._most

    def step(self, tokens: Tokens, lengths: NDArray[np.int32], all_logits: bool = False) -> Logits:
        count = tokens.shape[1]
        self._io.fill(tokens, int(lengths[0]), all_logits)
        self._run((count, all_logits and count > 1))
        if not self._in_place:
            self._cache.take_scratch(0, int(lengths[0]), count, count)
        self._cuda.synchronize()
        if self._importance:
            self.signals = self._io.signals(count)
        return self._io.logits(count if all_logits else 1)

    def compact(self, row: int, kept: Slots) -> None:
        first, shift = moves(kept)
        if first == len(kept):
            return
        # In order: a slot only moves to the front, so no chunk overwrites what a later one reads.
        for begin, end in chunks(first, len(kept), self._most_kept):
            self._cuda.synchronize()  # the chunk before may still be read
            self._kept.array[: end - begin] = kept[begin:end]
            self._shift.array[: end - begin] = shift[begin - first : end - first]
            self._bind_compact(end - begin)
            self._compact.enqueue()
            self._cache.take_scratch(row, begin, end - begin, end - begin)

    def sibling(self) -> TensorRtEngine:
        """An engine with buffers of its own and the same weights in memory."""
        return TensorRtEngine(
            self._bundle, self._engines, self.capacity, self._importance, self._loaded
        )

    def close(self) -> None:
        for program in self._programs.values():
            if program.graph is not None:
                program.graph.close()
        self._programs.clear()
        super().close()
        for name in ("_any", "_compact", "_loaded"):  # the weights go with the last to share them
            self.__dict__.pop(name, None)

    def _run(self, shape: Shape) -> None:
        """Enqueue a step: plainly the first time, later by the shape's CUDA graph."""
        program = self._programs.get(shape)
        if program is None and shape != DECODE and shape not in self._seen:
            self._seen.add(shape)
            self._bind(self._any, shape)
            self._any.enqueue()
            return
        if program is None:
            program = self._programs[shape] = self._make_program(shape)
        self._programs.move_to_end(shape)
        if program.graph is None and program.ran and self._records:
            program.graph = self._record(program.context)
        if program.graph is not None:
            program.graph.launch()
            return
        program.context.enqueue()
        program.ran = True

    def _record(self, context: Context) -> Graph | None:
        """The step as a CUDA graph; None, told once, where it does something that no graph may
        hold (NVIDIA's trtexec goes on without one, too)."""
        try:
            return context.record()
        except EngineError as error:
            self._records = False
            logger.warning("steps run without CUDA graphs, which is slower: %s", str(error))
            return None

    def _make_program(self, shape: Shape) -> _Program:
        if len(self._programs) >= MOST_PROGRAMS:
            oldest = next(other for other in self._programs if other != DECODE)
            gone = self._programs.pop(oldest)
            if gone.graph is not None:
                gone.graph.close()
        context = Context(self._cuda, self._loaded[0], 0 if shape == DECODE else 1, self._scratch)
        self._bind(context, shape)
        return _Program(context)

    def _bind(self, context: Context, shape: Shape) -> None:
        count, all_logits = shape
        graph, layers = self._bundle.manifest.graph, self._bundle.manifest.dims.num_layers
        sizes = {
            "batch": 1,
            "tokens": count,
            "targets": count - 1,
            "logit_positions": count if all_logits else 1,
        }
        addresses = self._io.addresses() | self._cache.addresses("past")
        if self._in_place:
            addresses |= self._cache.addresses("present")
        else:
            addresses |= self._cache.scratch_addresses("new", count)
        context.bind(shapes_of(graph.inputs, layers, sizes), addresses)

    def _bind_compact(self, count: int) -> None:
        graph, layers = self._bundle.manifest.compact, self._bundle.manifest.dims.num_layers
        assert graph is not None
        addresses = {"kept": self._kept.mapped, "shift": self._shift.mapped}
        addresses |= self._cache.addresses("past")
        addresses |= self._cache.scratch_addresses("kept", count)
        shapes = shapes_of(graph.inputs, layers, {"kept_slots": count})
        self._compact.bind(shapes, addresses)


class _HostIO:
    """Pinned memory for everything small that goes in and out of a step."""

    def __init__(self, cuda: Cuda, bundle: Bundle, most: int, has_signals: bool) -> None:
        dims, capacity = bundle.manifest.dims, bundle.manifest.max_capacity
        logits = min(most, MOST_LOGITS)
        inputs: dict[str, tuple[int, ...]] = {
            "input_ids": (most,),
            "position_ids": (most,),
            "cache_length": (1,),
            "output_index": (logits,),
        }
        outputs: dict[str, tuple[int, ...]] = {"logits": (logits, dims.vocab_size)}
        if has_signals:
            inputs["targets"] = (most,)
            outputs |= {
                "surprisal": (most,),
                "hidden": (most, dims.hidden_size),
                "attention_mass": (capacity,),
            }
        self._arrays: dict[str, HostArray] = {
            **{name: cuda.host(shape, np.int64) for name, shape in inputs.items()},
            **{name: cuda.host(shape, np.float32) for name, shape in outputs.items()},
        }
        self._steps = np.arange(most)

    def addresses(self) -> dict[str, int]:
        """Where kernels find each tensor; its content starts there, however many tokens."""
        return {name: array.mapped for name, array in self._arrays.items()}

    def fill(self, tokens: Tokens, length: int, all_logits: bool) -> None:
        count, arrays = tokens.shape[1], self._arrays
        arrays["input_ids"].array[:count] = tokens[0]
        np.add(self._steps[:count], length, out=arrays["position_ids"].array[:count])
        arrays["cache_length"].array[0] = length
        if all_logits:
            arrays["output_index"].array[:count] = self._steps[:count]
        else:
            arrays["output_index"].array[0] = count - 1
        if "targets" in arrays:
            arrays["targets"].array[: count - 1] = tokens[0, 1:]

    def logits(self, count: int) -> Logits:
        return self._arrays["logits"].array[None, :count]

    def signals(self, count: int) -> Signals:
        a = self._arrays
        return Signals(
            surprisal=a["surprisal"].array[None, : count - 1],
            hidden=a["hidden"].array[None, :count],
            attention_mass=a["attention_mass"].array[None],
        )
