"""ONNX Runtime on CPU: GroupQueryAttention with in-place KV, fused norms, 8-bit matmuls."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects import ort_importance, signals
from edgechat.export.dialects.common import BATCH, Common
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.activations import KVScales
from edgechat.export.quantize.blockwise import BLOCK, quantize_blocks
from edgechat.export.quantize.rotate import hadamard
from edgechat.export.rotary import rotary_tables
from edgechat.export.spec import AnyLinear, Array, DecoderSpec, Int8Linear, Linear, RotarySpec

OPSETS = {"": 21, "com.microsoft": 1}
MS = "com.microsoft"
CAPACITY = "capacity"


class OrtCpu(Common):
    """Spells the verbs of :class:`~edgechat.export.dialects.base.Dialect`.

    ``blocks``: a plain ``Linear`` is stored in 8 bits with a scale for every BLOCK inputs (else
    in float32). ``kv_scales``: scales of layer i's int8 KV cache, known once its weights were
    read; None keeps the cache in float32. ``importance`` adds the outputs ``surprisal``,
    ``hidden`` and ``attention_mass``.
    """

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
        self._probabilities: list[str] = []
        self._table = np.zeros((0, 0), dtype=np.float32)
        kv_dtype = "float32" if kv_scales is None else "int8"
        self._read_bytes = 0
        cache = (BATCH, spec.num_kv_heads, CAPACITY, spec.head_dim)
        self._declare(
            (
                TensorInfo("seqlens_k", "int32", (BATCH,)),
                TensorInfo("total_sequence_length", "int32", ()),
            ),
            (
                tuple(TensorInfo(f"past_{k}.{{i}}", kv_dtype, cache) for k in ("key", "value")),
                tuple(TensorInfo(f"present_{k}.{{i}}", kv_dtype, cache) for k in ("key", "value")),
            ),
            CAPACITY,
        )
        self._rotary: dict[RotarySpec, list[str]] = {}
        for index, rotary in enumerate(spec.rotaries):
            suffix = f".{index}" if index else ""
            cos, sin = rotary_tables(rotary, max_capacity)
            self._rotary[rotary] = [
                graph.weight(f"rotary.cos{suffix}", cos),
                graph.weight(f"rotary.sin{suffix}", sin),
                "position_ids",
            ]

    def embed(self, table: Array) -> str:
        if self._spec.tied_embeddings:
            self._table = table
        if self._blocks:
            x = ort_importance.gather_blocks(self._graph, "embed", table, "input_ids")
        else:
            x = self._graph.node("Gather", [self._graph.weight("embed", table), "input_ids"])
        return self._scaled_embedding(str(x))

    def add(self, residual: str, update: str, post_norm: Array | None) -> str:
        if post_norm is not None:
            update = self._norm(update, post_norm)
        return str(self._graph.node("Add", [residual, update]))

    def add_norm(
        self, residual: str, update: str | None, post_norm: Array | None, gamma: Array | None
    ) -> tuple[str, str]:
        if update is None:
            return residual if gamma is None else self._norm(residual, gamma), residual
        if gamma is None:
            total = self.add(residual, update, post_norm)
            return total, total
        if post_norm is not None:
            update = self._norm(update, post_norm)
        weight, eps = self._graph.constant(gamma), self._spec.norm_eps
        outputs = self._graph.fresh("SkipNorm", 2)
        self._graph.node(
            "SkipSimplifiedLayerNormalization",
            [residual, update, weight],
            [outputs[0], "", "", outputs[1]],
            domain=MS,
            epsilon=eps,
        )
        return outputs[0], outputs[1]

    def linear(self, x: str, linear: AnyLinear, role: str, name: str) -> str:
        bias = None if linear.bias is None else self._graph.constant(linear.bias)
        if isinstance(linear, Int8Linear):
            return self._matmul_int8(x, linear, name, bias)
        if not isinstance(linear, Linear):
            raise TypeError(f"{name}: static scales are not spelled for ONNX Runtime")
        if not self._blocks:
            y = self._matmul(x, self._graph.weight(name, linear.weight), linear.weight.shape)
            return y if bias is None else str(self._graph.node("Add", [y, bias]))
        codes, scales = quantize_blocks(linear.weight, BLOCK)
        return self._matmul_blocks(
            x,
            self._graph.weight(name, codes),
            self._graph.weight(f"{name}.scale", scales),
            linear.weight.shape,
            bias,
        )

    def attention(self, layer: int, qkv: str, q_norm: Array | None, k_norm: Array | None) -> str:
        s = self._spec
        rotary, window = s.rotary[layer], s.windows[layer]
        inputs = [qkv, "", ""]
        if q_norm is not None and k_norm is not None:
            sizes = self._graph.constant(np.array([s.q_size, s.kv_size, s.kv_size]))
            q, k, v = self._graph.node("Split", [qkv, sizes], 3, axis=-1)
            inputs = [self._norm_heads(q, q_norm), self._norm_heads(k, k_norm), v]
        options: dict[str, Any] = {"scale": s.attention_scale, "do_rotary": int(rotary is not None)}
        if s.attention_softcap:
            options["softcap"] = s.attention_softcap
        if window:  # counts slots, and a slot is a position: right after compactions too
            options["local_window_size"] = window
        scales: list[str] = []
        if self._kv_scales is not None:
            of_layer = self._kv_scales[layer]
            scales = [self._graph.constant(x) for x in (of_layer.key, of_layer.value)]
            scales = ["", "", *scales]  # attention bias and head sink stay empty
            options |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
            options["kv_cache_bit_width"] = 8
        outputs = [*self._graph.fresh("Attention", 1)]
        outputs += [f"present_key.{layer}", f"present_value.{layer}"]
        if self._importance and layer in signals.mass_layers(s.windows):
            self._probabilities += self._graph.fresh("Probabilities", 1)
            outputs.append(self._probabilities[-1])
            options["qk_output"] = 2  # after softmax
        out, *_ = self._graph.node(
            "GroupQueryAttention",
            [
                *inputs,
                f"past_key.{layer}",
                f"past_value.{layer}",
                "seqlens_k",
                "total_sequence_length",
                *(["", "", ""] if rotary is None else self._rotary[rotary]),
                *scales,
            ],
            outputs,
            domain=MS,
            num_heads=s.num_heads,
            kv_num_heads=s.num_kv_heads,
            rotary_interleaved=0,
            **options,
        )
        return str(out)

    def activation(self, gate_up: str) -> str:
        if not self._spec.gated:
            return self._act(gate_up)
        gate, up = self._graph.node("Split", [gate_up], 2, axis=-1, num_outputs=2)
        return str(self._graph.node("Mul", [self._act(gate), up]))

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
        ort_importance.surprisal(
            self._graph,
            read,
            head or Linear(self._table),
            name if not self._blocks and isinstance(head, Linear | None) else None,
            lambda part: self.linear(read, part, "head", "head.common"),
            self._cap_logits,
        )
        self._read_bytes = read_bytes  # a decode step has no targets
        ort_importance.attention_mass(self._graph, self._probabilities)

    def _norm(self, x: str, gamma: Array) -> str:
        return str(
            self._graph.node(
                "SimplifiedLayerNormalization",
                [x, self._graph.constant(gamma)],
                axis=-1,
                epsilon=self._spec.norm_eps,
                stash_type=1,
            )
        )

    def _norm_heads(self, x: str, gamma: Array) -> str:
        """Norm x [B, S, heads * head_dim]: each head by itself, or all at once if gamma is as
        long."""
        if len(gamma) != self._spec.head_dim:
            return self._norm(x, gamma)
        split = self._graph.constant(np.array([0, 0, -1, self._spec.head_dim]))
        join = self._graph.constant(np.array([0, 0, -1]))
        normed = self._norm(self._graph.node("Reshape", [x, split]), gamma)
        return str(self._graph.node("Reshape", [normed, join]))

    def _act(self, x: str) -> str:
        if self._spec.activation == "silu":
            return str(self._graph.node("QuickGelu", [x], domain=MS, alpha=1.0))  # x * sigmoid(x)
        approximate = "tanh" if self._spec.activation == "gelu_tanh" else "none"
        return str(self._graph.node("Gelu", [x], approximate=approximate))

    def _cap_logits(self, x: str) -> str:
        return signals.soft_cap(self._graph, x, self._spec.logit_softcap)

    def _matmul(self, x: str, weight: str, shape: tuple[int, ...]) -> str:
        """x @ weight.T with ``weight`` [out, in] float32 as checkpoints store it."""
        self._read_bytes += 4 * shape[0] * shape[1]
        return str(self._graph.node("FusedMatMul", [x, weight], domain=MS, transB=1))

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

    def _matmul_blocks(
        self, x: str, codes: str, scale: str, shape: tuple[int, ...], bias: str | None
    ) -> str:
        rows, features = shape
        self._read_bytes += rows * features + rows * -(-features // BLOCK) * 4
        return str(
            self._graph.node(
                "MatMulNBits",
                [x, codes, scale, *(["", "", bias] if bias else [])],
                domain=MS,
                bits=8,
                block_size=BLOCK,
                K=features,
                N=rows,
                accuracy_level=4,  # int8 activations inside the kernel; without it 100x slower
            )
        )
