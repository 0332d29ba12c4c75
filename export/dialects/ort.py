"""ONNX Runtime, what its dialects share: fused norms in float32, GroupQueryAttention."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from edgechat.bundle import TensorInfo
from edgechat.export.dialects import signals
from edgechat.export.dialects.common import BATCH, Common
from edgechat.export.dialects.floats import Floats
from edgechat.export.quantize.blockwise import BLOCK, quantize_blocks
from edgechat.export.rotary import rotary_tables
from edgechat.export.spec import Array, RotarySpec

MS = "com.microsoft"
CAPACITY = "capacity"  # any length; the runtime's choice


class Ort(Floats, Common):
    """Verbs of :class:`~edgechat.export.dialects.base.Dialect`. The residual stream and norms
    are float32; projections read and write ``_dtype``, as attention does."""

    opsets: ClassVar[dict[str, int]]
    rms_norm: ClassVar[str]  # what ONNX Runtime's kernel for it is called

    def _declare_ort(self, kv_dtype: str, positions: bool) -> None:
        cache = (BATCH, self._spec.num_kv_heads, CAPACITY, self._spec.head_dim)
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
            positions=positions,
        )

    def _rotary_weights(self, positions: int) -> dict[RotarySpec, list[str]]:
        """Cosines and sines of each rotary, as GroupQueryAttention takes them."""
        tables: dict[RotarySpec, list[str]] = {}
        for index, rotary in enumerate(self._spec.rotaries):
            suffix = f".{index}" if index else ""
            tables[rotary] = [
                self._graph.weight(f"rotary.{name}{suffix}", table.astype(self._dtype))
                for name, table in zip(
                    ("cos", "sin"), rotary_tables(rotary, positions), strict=True
                )
            ]
        return tables

    def add_norm(
        self, residual: str, update: str | None, post_norm: Array | None, gamma: Array | None
    ) -> tuple[str, str]:
        if update is None:
            return self._half(residual if gamma is None else self._norm(residual, gamma)), residual
        if gamma is None:
            total = self.add(residual, update, post_norm)
            return self._half(total), total
        update = self._normed(update, post_norm)
        weight, eps = self._graph.constant(gamma), self._spec.norm_eps
        outputs = self._graph.fresh("SkipNorm", 2)
        self._graph.node(
            "SkipSimplifiedLayerNormalization",
            [residual, update, weight],
            [outputs[0], "", "", outputs[1]],
            domain=MS,
            epsilon=eps,
        )
        return self._half(outputs[0]), outputs[1]

    def activation(self, gate_up: str) -> str:
        if not self._spec.gated:
            return self._act(gate_up)
        gate, up = self._graph.node("Split", [gate_up], 2, axis=-1, num_outputs=2)
        return str(self._graph.node("Mul", [self._act(gate), up]))

    def _norm(self, x: str, gamma: Array) -> str:
        """RMSNorm of ``x`` in float32."""
        return str(
            self._graph.node(
                self.rms_norm,
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
            return self._half(self._norm(self._float32(x), gamma))
        split = self._graph.constant(np.array([0, 0, -1, self._spec.head_dim]))
        join = self._graph.constant(np.array([0, 0, -1]))
        heads = self._graph.node("Reshape", [x, split])
        normed = self._half(self._norm(self._float32(heads), gamma))
        return str(self._graph.node("Reshape", [normed, join]))

    def _act(self, x: str) -> str:
        if self._spec.activation == "silu":
            return str(self._graph.node("QuickGelu", [x], domain=MS, alpha=1.0))  # x * sigmoid(x)
        return self._gelu(x, "tanh" if self._spec.activation == "gelu_tanh" else "none")

    def _gelu(self, x: str, approximate: str) -> str:
        return str(self._graph.node("Gelu", [x], approximate=approximate))

    def _cap_logits(self, x: str) -> str:
        return signals.soft_cap(self._graph, x, self._spec.logit_softcap)

    def _matmul(self, x: str, weight: str, shape: tuple[int, ...]) -> str:
        """x @ weight.T with ``weight`` [out, in] as checkpoints store it."""
        self._read_bytes += self._dtype.itemsize * shape[0] * shape[1]
        return str(self._graph.node("FusedMatMul", [x, weight], domain=MS, transB=1))

    def _matmul_blocks(self, x: str, weight: Array, name: str, bias: str | None = None) -> str:
        """x @ weight.T with ``weight`` [out, in] in 8 bits, a scale for every BLOCK inputs."""
        rows, features = weight.shape
        codes, scales = quantize_blocks(weight, BLOCK, self._dtype)
        self._read_bytes += rows * features + scales.nbytes
        codes_name = self._graph.weight(name, codes)
        scales_name = self._graph.weight(f"{name}.scale", scales)
        return str(
            self._graph.node(
                "MatMulNBits",
                [x, codes_name, scales_name, *(["", "", bias] if bias else [])],
                domain=MS,
                bits=8,
                block_size=BLOCK,
                K=features,
                N=rows,
                accuracy_level=4,  # on CPU int8 activations in the kernel: without it 100x slower
            )
        )

    def _qkv(self, qkv: str, q_norm: Array | None, k_norm: Array | None) -> list[str]:
        """The packed projection, "", "", or normed queries, normed keys and values."""
        if q_norm is None or k_norm is None:
            return [qkv, "", ""]
        q, k, v = self._split_qkv(qkv)
        return [self._norm_heads(q, q_norm), self._norm_heads(k, k_norm), v]

    def _split_qkv(self, qkv: str) -> list[str]:
        s = self._spec
        sizes = self._graph.constant(np.array([s.q_size, s.kv_size, s.kv_size]))
        return list(self._graph.node("Split", [qkv, sizes], 3, axis=-1))

    def _attention_options(self, layer: int) -> dict[str, Any]:
        """GroupQueryAttention's attributes that tell layers and models apart."""
        s, window = self._spec, self._spec.windows[layer]
        options: dict[str, Any] = {
            "scale": s.attention_scale,
            "do_rotary": int(s.rotary[layer] is not None),
        }
        if s.attention_softcap:
            options["softcap"] = s.attention_softcap
        if window:  # counts slots, and a slot is a position: right after compactions too
            options["local_window_size"] = window
        return options

    def _gives_mass(self, layer: int) -> bool:
        return self._importance and layer in signals.mass_layers(self._spec.windows)

    def _attend(
        self,
        layer: int,
        qkv: list[str],
        rotary: list[str],
        scales: list[str],
        options: dict[str, Any],
        probabilities: bool = False,
    ) -> list[str]:
        """Attention with the cache written in place, [B, S, heads * head_dim], and after it, if
        asked for, the softmax [B, heads, S, T].

        ``qkv`` are the packed projection, "", "" or queries, keys and values; ``rotary`` cosines,
        sines and positions; ``scales`` the places behind them.
        """
        outputs = self._graph.fresh("Attention", 1)
        outputs += [f"present_key.{layer}", f"present_value.{layer}"]
        if probabilities:
            outputs += self._graph.fresh("Probabilities", 1)
            options["qk_output"] = 2  # after softmax
        inputs = [*qkv, f"past_key.{layer}", f"past_value.{layer}"]
        self._graph.node(
            "GroupQueryAttention",
            [*inputs, "seqlens_k", "total_sequence_length", *rotary, *scales],
            outputs,
            domain=MS,
            num_heads=self._spec.num_heads,
            kv_num_heads=self._spec.num_kv_heads,
            rotary_interleaved=0,
            **options,
        )
        return [outputs[0], *outputs[3:]]
