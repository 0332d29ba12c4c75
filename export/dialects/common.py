"""What all dialects spell alike: the contract's frame, selection, the outputs of importance."""

from __future__ import annotations

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.graph import GraphBuilder
from edgechat.export.spec import DecoderSpec

BATCH, STEPS = "batch", "tokens"
OUTPUTS, LOGITS, TARGETS = "output_positions", "logit_positions", "targets"
MASKED = -65504.0  # added to a score: the lowest float16, which no softmax lets through
Tensors = tuple[TensorInfo, ...]


class Common:
    """Verbs of :class:`~edgechat.export.dialects.base.Dialect`; a dialect sets the fields."""

    _graph: GraphBuilder
    _spec: DecoderSpec
    _importance: bool
    _read_bytes: int
    _inputs: Tensors
    _outputs: Tensors

    def _declare(
        self,
        lengths: Tensors,
        cache: tuple[Tensors, Tensors],
        capacity: int | str,
        outputs: str = OUTPUTS,
        positions: bool = True,
    ) -> None:
        """Name the graph's inputs and outputs: ``lengths`` tell how full the cache is, whose
        tensors, one entry for all layers, are ``cache`` = (inputs, outputs); ``outputs`` names
        the number of positions ``output_index`` lists; without ``positions`` a token's is its
        slot."""
        vocab, hidden = self._spec.vocab_size, self._spec.hidden_size
        self._inputs = (
            TensorInfo("input_ids", "int64", (BATCH, STEPS)),
            *([TensorInfo("position_ids", "int64", (BATCH, STEPS))] if positions else []),
            *lengths,
            TensorInfo("output_index", "int64", (BATCH, outputs, 1)),
            *cache[0],
        )
        self._outputs = (TensorInfo("logits", "float32", (BATCH, LOGITS, vocab)), *cache[1])
        if self._importance:
            self._inputs += (TensorInfo("targets", "int64", (BATCH, TARGETS)),)
            self._outputs += (
                TensorInfo("surprisal", "float32", (BATCH, TARGETS)),
                TensorInfo("hidden", "float32", (BATCH, STEPS, hidden)),
                TensorInfo("attention_mass", "float32", (BATCH, capacity)),
            )
        self._graph.declare(self._inputs, self._outputs, self._spec.num_layers)

    @property
    def weight_bytes_per_token(self) -> int:
        return self._read_bytes

    def contract(self) -> tuple[Tensors, Tensors]:
        return self._inputs, self._outputs

    def hidden(self, x: str) -> None:
        if self._importance:
            self._graph.node("Identity", [x], ["hidden"])

    def select(self, x: str) -> str:
        return str(self._graph.node("GatherND", [x, "output_index"], batch_dims=1))

    def _scaled_embedding(self, x: str) -> str:
        scale = self._spec.embedding_scale
        if scale == 1:
            return x
        factor = self._graph.constant(np.array(scale, dtype=np.float32))
        return str(self._graph.node("Mul", [x, factor]))
