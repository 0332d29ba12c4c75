"""ONNX Runtime on CPU: GroupQueryAttention with in-place KV, fused norms, 8-bit matmuls."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgechat.export.dialects import ort_importance, signals
from edgechat.export.dialects.ort import MS, Ort
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.activations import KVScales
from edgechat.export.quantize.rotate import hadamard
from edgechat.export.spec import AnyLinear, Array, DecoderSpec, Int8Linear, Linear


class OrtCpu(Ort):
    """Spells the verbs of :class:`~edgechat.export.dialects.base.Dialect`.

    ``blocks``: a plain ``Linear`` is stored in 8 bits with a scale for every BLOCK inputs (else
    in float32). ``kv_scales``: scales of layer i's int8 KV cache, known once its weights were
    read; None keeps the cache in float32. ``importance`` adds the outputs ``surprisal``,
    ``hidden`` and ``attention_mass``.
    """

    opsets: ClassVar[dict[str, int]] = {"": 23, MS: 1}
    rms_norm = "RMSNormalization"

    def __init__(
        self,
        graph: GraphBuilder,
        spec: DecoderSpec,
        blocks: bool,
        max_capacity: int,
        kv_scales: list[KVScales] | None = None,
        importance: bool = True,
    ) -> None:
        self._graph, self._spec, self._blocks = graph, spec, blocks
        self._kv_scales, self._importance = kv_scales, importance
        self._dtype = np.dtype(np.float32)
        self._probabilities: list[str] = []
        self._table = np.zeros((0, 0), dtype=np.float32)
        self._read_bytes = 0
        self._declare_ort("float32" if kv_scales is None else "int8", positions=True)
        self._rotary = self._rotary_weights(max_capacity)

    def embed(self, table: Array) -> str:
        if self._spec.tied_embeddings:
            self._table = table
        if self._blocks:
            x = ort_importance.gather_blocks(self._graph, "embed", table, "input_ids")
        else:
            x = self._graph.node("Gather", [self._graph.weight("embed", table), "input_ids"])
        return self._scaled_embedding(str(x))

    def linear(self, x: str, linear: AnyLinear, role: str, name: str) -> str:
        bias = None if linear.bias is None else self._graph.constant(linear.bias)
        if isinstance(linear, Int8Linear):
            return self._matmul_int8(x, linear, name, bias)
        if not isinstance(linear, Linear):
            raise TypeError(f"{name}: static scales are not spelled for ONNX Runtime")
        if not self._blocks:
            y = self._matmul(x, self._graph.weight(name, linear.weight), linear.weight.shape)
            return y if bias is None else str(self._graph.node("Add", [y, bias]))
        return self._matmul_blocks(x, linear.weight, name, bias)

    def attention(self, layer: int, qkv: str, q_norm: Array | None, k_norm: Array | None) -> str:
        rotary = self._spec.rotary[layer]
        inputs = self._qkv(qkv, q_norm, k_norm)
        options = self._attention_options(layer)
        scales: list[str] = []
        if self._kv_scales is not None:
            of_layer = self._kv_scales[layer]
            scales = [self._graph.constant(x) for x in (of_layer.key, of_layer.value)]
            scales = ["", "", *scales]  # attention bias and head sink stay empty
            options |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
            options["kv_cache_bit_width"] = 8
        tables = ["", "", ""] if rotary is None else [*self._rotary[rotary], "position_ids"]
        mass = self._gives_mass(layer)
        out, *probabilities = self._attend(layer, inputs, tables, scales, options, mass)
        self._probabilities += probabilities
        return out

    def logits(self, x: str, head: AnyLinear | None) -> None:
        read = x
        if self._importance:
            read, x = signals.split_rows(self._graph, x)
        if head is not None:
            y = self.linear(x, head, "head", "head")
        else:
            # tied: only fp32 is, since whatever rounds is rotated first
            y = self._matmul(x, "embed", (self._spec.vocab_size, self._spec.hidden_size))
        self._graph.node("Identity", [self._cap_logits(y)], ["logits"])
        if not self._importance:
            return
        read_bytes, name = self._read_bytes, "embed" if head is None else "head"
        stored = name if not self._blocks and isinstance(head, Linear | None) else None
        head = head or Linear(self._table)
        ort_importance.surprisal(
            self._graph,
            read,
            ort_importance.target_rows(self._graph, head, stored),
            head,
            lambda part: self.linear(read, part, "head", "head.common"),
            self._cap_logits,
        )
        self._read_bytes = read_bytes  # a decode step has no targets
        ort_importance.attention_mass(self._graph, self._probabilities)

    def _matmul_int8(self, x: str, linear: Int8Linear, name: str, bias: str | None) -> str:
        self._read_bytes += linear.codes.nbytes
        weight = self._graph.weight(name, linear.codes.T)
        scales = self._graph.constant(linear.scales)
        if linear.hadamard:
            matrix = self._graph.constant(hadamard(linear.hadamard).astype(np.float32))
            split = self._graph.constant(np.array([0, 0, -1, linear.hadamard]))
            join = self._graph.constant(np.array([0, 0, -1]))
            x = self._graph.node("Reshape", [x, split])
            x = self._graph.node("Reshape", [self._graph.node("MatMul", [x, matrix]), join])
        inputs = [x, weight, scales, *(["", bias] if bias else [])]
        return str(self._graph.node("DynamicQuantizeMatMul", inputs, domain=MS))
