"""TensorRT, what all versions share: FP16 products and attention, FP32 residual stream and norms.

Weights lie [out, in] in front of a Transpose: of those stored [in, out] an engine keeps one copy
for each optimisation profile (SmolLM2 in int8: 346 MB for two profiles against 243).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects import ort_importance, tensorrt_signals
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.rounding import absmax_scales, round_to_nearest
from edgechat.export.spec import AnyLinear, Array, DecoderSpec, Linear, StaticInt8Linear

BATCH, STEPS = "batch", "tokens"
OUTPUTS, LOGITS, TARGETS = "output_positions", "logit_positions", "targets"
ONNX_TYPES = {"float32": 1, "float16": 10}  # Cast's names for them
MASKED = -65504.0  # added to a score: the lowest float16, which no softmax lets through


@dataclass(frozen=True)
class Stored:
    """Weights in the graph: ``rows`` names a float tensor [out, in].

    ``factors`` [out] belong behind the product; ``input_scale`` rounds what is multiplied.
    """

    rows: str
    bias: Array | None = None
    factors: Array | None = None
    input_scale: float | None = None


class TensorRt(ABC):
    """Spells the verbs of :class:`~edgechat.export.dialects.base.Dialect`.

    ``dtype`` is float16, or float32 for a twin that ONNX Runtime's CPU compares with the model
    (TensorRT itself builds no float32 attention). ``int8`` stores the embedding in 8 bits; a
    projection is stored the way it comes. ``capacity`` is the length of the cache: TensorRT takes
    no other than a fixed one. ``importance`` adds the outputs ``surprisal``, ``hidden`` and
    ``attention_mass``.
    """

    opsets: ClassVar[dict[str, int]]

    def __init__(
        self,
        graph: GraphBuilder,
        spec: DecoderSpec,
        dtype: str,
        int8: bool,
        capacity: int,
        importance: bool = True,
    ) -> None:
        self._graph, self._spec, self._int8, self._importance = graph, spec, int8, importance
        self._dtype = np.dtype(dtype)
        self._capacity = capacity
        self._table = np.zeros((0, 0), dtype=np.float32)
        self._embedding = Stored("")
        self._masses: list[str] = []
        self._read_bytes = 0
        cache_inputs, cache_outputs = self._cache()
        self._inputs: tuple[TensorInfo, ...] = (
            TensorInfo("input_ids", "int64", (BATCH, STEPS)),
            TensorInfo("position_ids", "int64", (BATCH, STEPS)),
            TensorInfo("cache_length", "int64", (BATCH,)),
            TensorInfo("output_index", "int64", (BATCH, OUTPUTS, 1)),
            *cache_inputs,
        )
        self._outputs: tuple[TensorInfo, ...] = (
            TensorInfo("logits", "float32", (BATCH, LOGITS, spec.vocab_size)),
            *cache_outputs,
        )
        if importance:
            self._inputs += (TensorInfo("targets", "int64", (BATCH, TARGETS)),)
            self._outputs += (
                TensorInfo("surprisal", "float32", (BATCH, TARGETS)),
                TensorInfo("hidden", "float32", (BATCH, STEPS, spec.hidden_size)),
                TensorInfo("attention_mass", "float32", (BATCH, capacity)),
            )
        declare(graph, spec, self._inputs, self._outputs)
        self._rotary = self._rotary_tables()
        self._causal = self._causal_mask()

    @abstractmethod
    def _cache(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        """The KV cache's inputs and outputs."""

    @abstractmethod
    def _rotary_tables(self) -> tuple[str, str]:
        """cos and sin in the form ``_rotate`` wants, once for all layers."""

    @abstractmethod
    def _causal_mask(self) -> str:
        """What is added to scores, once for all layers."""

    @abstractmethod
    def _norm(self, x: str, gamma: Array) -> str:
        """RMSNorm of ``x`` in float32."""

    @abstractmethod
    def _rotate(self, x: str) -> str:
        """Rotary embedding of ``x`` [B, heads, S, D]."""

    @abstractmethod
    def _attend(self, layer: int, q: str, k: str, v: str) -> str:
        """Attention of the rotated ``q`` [B, H, S, D] over the cache with the new ``k`` and ``v``
        [B, H_kv, S, D] in it; [B, H, S, D]."""

    @property
    def weight_bytes_per_token(self) -> int:
        return self._read_bytes

    def contract(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        return self._inputs, self._outputs

    def embed(self, table: Array) -> str:
        if self._spec.tied_embeddings:
            self._table = table
        if self._int8:
            scales = absmax_scales(table)
            codes = self._graph.weight("embed", round_to_nearest(table, scales))
            rows = self._dequantize(codes, scales)
        else:
            rows = self._graph.weight("embed", table.astype(self._dtype))
        self._embedding = Stored(rows)
        return self._float32(self._graph.node("Gather", [rows, "input_ids"]))

    def hidden(self, x: str) -> None:
        if self._importance:
            self._graph.node("Identity", [x], ["hidden"])

    def add_norm(self, residual: str, update: str | None, gamma: Array) -> tuple[str, str]:
        if update is not None:
            residual = str(self._graph.node("Add", [residual, self._float32(update)]))
        return self._half(self._norm(residual, gamma)), residual

    def linear(self, x: str, linear: AnyLinear, role: str, name: str) -> str:
        return self._project(x, self._store(linear, name))

    def attention(self, layer: int, qkv: str) -> str:
        graph, s = self._graph, self._spec
        rotated = s.num_heads + s.num_kv_heads
        shape = graph.constant(np.array([0, 0, rotated + s.num_kv_heads, s.head_dim]))
        x = graph.node("Reshape", [qkv, shape])
        x = graph.node("Transpose", [x], perm=[0, 2, 1, 3])
        qk, v = self._split(x, [rotated, s.num_kv_heads], axis=1)
        q, k = self._split(self._rotate(qk), [s.num_heads, s.num_kv_heads], axis=1)
        x = graph.node("Transpose", [self._attend(layer, q, k, v)], perm=[0, 2, 1, 3])
        return str(graph.node("Reshape", [x, graph.constant(np.array([0, 0, s.q_size]))]))

    def select(self, x: str) -> str:
        return str(self._graph.node("GatherND", [x, "output_index"], batch_dims=1))

    def gated_activation(self, gate_up: str) -> str:
        inner = self._spec.intermediate_size
        gate, up = self._split(gate_up, [inner, inner], axis=-1)
        silu = self._graph.node("Mul", [gate, self._graph.node("Sigmoid", [gate])])
        return str(self._graph.node("Mul", [silu, up]))

    def logits(self, x: str, head: AnyLinear | None) -> None:
        graph, read = self._graph, x
        if self._importance:
            read, x = ort_importance.split_rows(graph, x)
        if head is None:
            stored = self._embedding
            self._read_bytes += self._table.size * self._dtype.itemsize
        else:
            stored = self._store(head, "head")
        logits = self._float32(self._project(x, stored))
        graph.node("Identity", [logits], ["logits"])
        if not self._importance:
            return
        common = ort_importance.first_rows(head or Linear(self._table), ort_importance.COMMON)
        read_bytes = self._read_bytes
        scores = self._project(read, self._store(common, "head.common"))
        self._read_bytes = read_bytes  # a decode step has no targets
        own = self._float32(self._own_logit(read, stored))
        tensorrt_signals.surprisal(graph, own, self._float32(scores))
        tensorrt_signals.attention_mass(graph, self._masses)

    def _store(self, linear: AnyLinear, name: str) -> Stored:
        graph = self._graph
        if not isinstance(linear, StaticInt8Linear):
            assert isinstance(linear, Linear)
            self._read_bytes += linear.weight.size * self._dtype.itemsize
            return Stored(graph.weight(name, linear.weight.astype(self._dtype)), linear.bias)
        self._read_bytes += linear.codes.nbytes
        codes = graph.weight(name, linear.codes)
        if linear.input_scale is not None:
            rows = self._dequantize(codes, linear.scales)
            return Stored(rows, linear.bias, input_scale=linear.input_scale)
        # With a scale a row TensorRT expands the whole weight at every step of one token. One
        # scale for all rows, and what is left of each row's own behind the product, is fused.
        shared = np.exp(np.log(linear.scales).mean()).astype(self._dtype)
        if shared == 1:  # as for a layer of zeros; TensorRT takes exactly 1 for no scale at all
            shared = np.nextafter(shared, np.zeros_like(shared))
        rows = self._dequantize(codes, shared)
        return Stored(rows, linear.bias, factors=linear.scales / shared.astype(np.float32))

    def _project(self, x: str, stored: Stored) -> str:
        graph = self._graph
        if stored.input_scale is not None:
            scale = self._constant(np.array(stored.input_scale))
            zero = graph.constant(np.array(0, dtype=np.int8))
            x = graph.node("QuantizeLinear", [x, scale, zero])
            x = graph.node("DequantizeLinear", [x, scale, zero])
        y = graph.node("MatMul", [x, graph.node("Transpose", [stored.rows], perm=[1, 0])])
        if stored.factors is not None:
            y = graph.node("Mul", [y, self._constant(stored.factors)])
        if stored.bias is not None:
            y = graph.node("Add", [y, self._constant(stored.bias)])
        return str(y)

    def _own_logit(self, x: str, stored: Stored) -> str:
        """x · row of each of the ``targets`` + its bias, [B, Q]."""
        graph = self._graph
        rows = graph.node("Gather", [stored.rows, "targets"])
        products = self._float32(graph.node("Mul", [rows, x]))
        own = graph.node("ReduceSum", [products, graph.constant(np.array([-1]))], keepdims=0)
        for op, values in (("Mul", stored.factors), ("Add", stored.bias)):
            if values is not None:
                constant = graph.constant(values.astype(np.float32))
                own = graph.node(op, [own, graph.node("Gather", [constant, "targets"])])
        return str(own)

    def _dequantize(self, codes: str, scales: Array) -> str:
        """Codes [out, in] times one scale, or one for each row."""
        zeros = self._graph.constant(np.zeros(scales.shape, dtype=np.int8))
        inputs = [codes, self._constant(scales), zeros]
        axis: dict[str, Any] = {"axis": 0} if scales.ndim else {}
        return str(self._graph.node("DequantizeLinear", inputs, **axis))

    def _gives_mass(self, layer: int) -> bool:
        layers = ort_importance.mass_layers(self._spec.num_layers)
        return self._importance and layer in layers

    def _grouped(self, q: str) -> str:
        """Queries [B, H, S, D] by the KV head they share, [B, H_kv, G * S, D]."""
        shape = np.array([0, self._spec.num_kv_heads, -1, self._spec.head_dim])
        return str(self._graph.node("Reshape", [q, self._graph.constant(shape)]))

    def _split(self, x: str, sizes: list[int], axis: int) -> list[str]:
        constant = self._graph.constant(np.array(sizes))
        return list(self._graph.node("Split", [x, constant], len(sizes), axis=axis))

    def _steps(self) -> str:
        """0 … S - 1, int64."""
        graph = self._graph
        size = graph.node("Shape", ["input_ids"], start=1, end=2)
        size = graph.node("Squeeze", [size, graph.constant(np.array([0]))])
        zero, one = (graph.constant(np.array(n)) for n in (0, 1))
        return str(graph.node("Range", [zero, size, one]))

    def _mask(self, valid: str) -> str:
        """Booleans to what is added to scores."""
        zero, masked = self._constant(np.array(0.0)), self._constant(np.array(MASKED))
        return str(self._graph.node("Where", [valid, zero, masked]))

    def _half(self, x: str) -> str:
        """float32 to the type of the products."""
        return self._cast(x, self._dtype.name) if self._dtype != np.float32 else x

    def _float32(self, x: str) -> str:
        return self._cast(x, "float32") if self._dtype != np.float32 else x

    def _cast(self, x: str, dtype: str) -> str:
        return str(self._graph.node("Cast", [x], to=ONNX_TYPES[dtype]))

    def _constant(self, value: Any) -> str:
        return self._graph.constant(np.asarray(value).astype(self._dtype))


def declare(
    graph: GraphBuilder,
    spec: DecoderSpec,
    inputs: tuple[TensorInfo, ...],
    outputs: tuple[TensorInfo, ...],
) -> None:
    """Give the graph the inputs and outputs of a contract."""
    for infos, add in ((inputs, graph.input), (outputs, graph.output)):
        for info in infos:
            for name in info.names(spec.num_layers):
                add(name, info.dtype, info.shape)
