"""ONNX Runtime on CUDA: FP16 GroupQueryAttention with in-place KV, 8-bit or FP16 products.

Only what ONNX Runtime 1.23 and later have CUDA kernels for (``ort_kernels.py``).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgechat.export.dialects import ort_importance, signals
from edgechat.export.dialects.common import MASKED
from edgechat.export.dialects.ort import MS, Ort
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.blockwise import BLOCK, ZERO_POINT
from edgechat.export.quantize.rounding import absmax_scales, round_to_nearest
from edgechat.export.spec import AnyLinear, Array, DecoderSpec, Linear


class OrtCuda(Ort):
    """Spells the verbs of :class:`~edgechat.export.dialects.base.Dialect`.

    ``dtype`` is float16, or float32 for a twin that ONNX Runtime's CPU compares with the model
    (CUDA has no float32 attention with a cache). ``blocks``: projections are stored in 8 bits
    with a scale for every BLOCK inputs, the embedding with a scale a row. ``importance`` adds the
    outputs ``surprisal``, ``hidden`` and ``attention_mass``.

    There is no ``position_ids``: attention takes a token's slot for its position, which it is, and
    up to ONNX Runtime 1.23 refuses other ones.
    """

    opsets: ClassVar[dict[str, int]] = {"": 18, MS: 1}  # newer ones lack kernels in 1.23
    rms_norm = "SimplifiedLayerNormalization"  # not ONNX's, though in its domain

    def __init__(
        self,
        graph: GraphBuilder,
        spec: DecoderSpec,
        dtype: str,
        blocks: bool,
        max_capacity: int,
        importance: bool = True,
    ) -> None:
        self._graph, self._spec, self._blocks = graph, spec, blocks
        self._importance, self._dtype = importance, np.dtype(dtype)
        self._table = np.zeros((0, 0), dtype=np.float32)
        self._masses: list[str] = []
        self._read_bytes = 0
        self._declare_ort(dtype, positions=False)
        self._rotary = self._rotary_weights(max_capacity)
        if importance:
            self._numbers = graph.weight("slots", np.arange(max_capacity, dtype=np.int32))
            self._own = self._own_slots()

    def embed(self, table: Array) -> str:
        graph = self._graph
        if self._spec.tied_embeddings:
            self._table = table
        if self._blocks:  # CUDA's GatherBlockQuantized fails on no rows at all, up to 1.30
            scales = absmax_scales(table)
            codes = round_to_nearest(table, scales)
            x = ort_importance.gather_rows(graph, "embed", codes, scales, "input_ids")
        else:
            stored = graph.weight("embed", table.astype(self._dtype))
            x = self._float32(graph.node("Gather", [stored, "input_ids"]))
        return self._scaled_embedding(x)

    def linear(self, x: str, linear: AnyLinear, role: str, name: str) -> str:
        if not isinstance(linear, Linear):
            raise TypeError(f"{name}: int8 inputs are not spelled for CUDA")
        weight = linear.weight
        if self._blocks:
            y = self._matmul_blocks(x, weight, name)
        else:
            stored = self._graph.weight(name, weight.astype(self._dtype))
            y = self._matmul(x, stored, weight.shape)
        if linear.bias is None:
            return y
        return str(self._graph.node("Add", [y, self._constant(linear.bias)]))

    def attention(self, layer: int, qkv: str, q_norm: Array | None, k_norm: Array | None) -> str:
        rotary = self._spec.rotary[layer]
        inputs = self._qkv(qkv, q_norm, k_norm)
        tables = [] if rotary is None else self._rotary[rotary]
        (out,) = self._attend(layer, inputs, tables, [], self._attention_options(layer))
        if self._gives_mass(layer):
            q = inputs[0] if inputs[1] else self._split_qkv(qkv)[0]
            self._masses.append(self._mass(layer, q))
        return out

    def logits(self, x: str, head: AnyLinear | None) -> None:
        graph, read = self._graph, x
        if self._importance:
            read, x = signals.split_rows(graph, x)
        if head is None:
            # tied: only what does not round is, since the rest is rotated first
            y = self._matmul(x, "embed", (self._spec.vocab_size, self._spec.hidden_size))
        else:
            y = self.linear(x, head, "head", "head")
        graph.node("Identity", [self._cap_logits(self._float32(y))], ["logits"])
        if not self._importance:
            return
        read_bytes = self._read_bytes
        ort_importance.surprisal(
            graph,
            self._float32(read),
            self._target_rows("embed" if head is None else "head"),
            head or Linear(self._table),
            lambda part: self._float32(self.linear(read, part, "head", "head.common")),
            self._cap_logits,
        )
        self._read_bytes = read_bytes  # a decode step has no targets
        signals.attention_mass(graph, self._masses)

    def _gelu(self, x: str, approximate: str) -> str:
        op = "FastGelu" if approximate == "tanh" else "Gelu"
        return str(self._graph.node(op, [x], domain=MS))

    def _target_rows(self, stored: str) -> str:
        """Rows of the matrix ``stored`` for the ``targets``, [B, Q, E] float32."""
        graph = self._graph
        rows = graph.node("Gather", [stored, "targets"])
        if not self._blocks:
            return self._float32(rows)
        zero = graph.constant(np.array(ZERO_POINT, dtype=np.float32))
        codes = graph.node("Sub", [graph.cast(rows, "float32"), zero])  # [B, Q, blocks, BLOCK]
        scales = self._float32(graph.node("Gather", [f"{stored}.scale", "targets"]))
        scales = graph.node("Unsqueeze", [scales, graph.constant(np.array([3]))])
        features = self._spec.hidden_size
        join = graph.constant(np.array([0, 0, -(-features // BLOCK) * BLOCK]))  # Q may be 0
        rows = graph.node("Reshape", [graph.node("Mul", [codes, scales]), join])
        if features % BLOCK == 0:
            return str(rows)
        zero, end, axis = (graph.constant(np.array([n])) for n in (0, features, 2))
        return str(graph.node("Slice", [rows, zero, end, axis]))

    def _mass(self, layer: int, q: str) -> str:
        """Softmax mass of each slot in ``layer``, [B, C] float32, given its packed queries.

        A path beside attention, which gives no softmax on CUDA. Queries are scaled in front of
        the product, or that would overflow float16.
        """
        graph, s = self._graph, self._spec
        rotary = s.rotary[layer]
        if rotary is not None:
            positions = graph.cast(self._own, "int64")
            q = graph.node(
                "RotaryEmbedding",
                [q, positions, *self._rotary[rotary]],
                domain=MS,
                num_heads=s.num_heads,
                rotary_embedding_dim=0 if rotary.dim == s.head_dim else rotary.dim,
            )
        heads = graph.constant(np.array([0, 0, s.num_heads, s.head_dim]))
        q = graph.node("Transpose", [graph.node("Reshape", [q, heads])], perm=[0, 2, 1, 3])
        groups = graph.constant(np.array([0, s.num_kv_heads, -1, s.head_dim]))
        q = graph.node("Reshape", [q, groups])
        q = graph.node("Mul", [q, self._constant(s.attention_scale / 2)])
        mask = graph.node(
            "Concat", [self._mask(s.windows[layer])] * (s.num_heads // s.num_kv_heads), axis=2
        )
        return signals.place_mass(graph, q, f"present_key.{layer}", mask, s.attention_softcap)

    def _mask(self, window: int) -> str:
        """What is added to scores, [B, 1, S, C] float32."""
        graph = self._graph
        own = graph.node("Unsqueeze", [self._own, graph.constant(np.array([1, 3]))])
        distance = graph.node("Sub", [own, self._count("past_key.0", 2)])
        none, size = (graph.constant(np.array(n, dtype=np.int32)) for n in (0, window))
        seen = graph.node("GreaterOrEqual", [distance, none])
        if window:
            seen = graph.node("And", [seen, graph.node("Less", [distance, size])])
        zero, masked = (graph.constant(np.array(n, dtype=np.float32)) for n in (0, MASKED))
        return str(graph.node("Where", [seen, zero, masked]))

    def _own_slots(self) -> str:
        """The slot of each token fed, [B, S] int32."""
        graph = self._graph
        steps = self._count("input_ids", 1)
        last = graph.node("Gather", [steps, graph.constant(np.array(-1))])
        ends = graph.node("Unsqueeze", ["seqlens_k", graph.constant(np.array([1]))])
        return str(graph.node("Add", [ends, graph.node("Sub", [steps, last])]))

    def _count(self, name: str, axis: int) -> str:
        """0 … n - 1 for the length n of an axis of the input ``name``, int32.

        A Slice of a stored table: the lengths of its inputs are known on the host, and Range
        would be computed there.
        """
        graph = self._graph
        size = graph.node("Shape", [name], start=axis, end=axis + 1)
        zero = graph.constant(np.array([0]))
        return str(graph.node("Slice", [self._numbers, zero, size, zero]))
