"""Attention mass for TensorRT."""

from __future__ import annotations

import numpy as np

from edgechat.export.dialects import signals
from edgechat.export.graph import GraphBuilder


def rows(graph: GraphBuilder, x: str, behind: str | None, count: str | None) -> str:
    """Rows of ``x`` [B, n, E]: those behind the first as many as the input ``behind`` has (None:
    from the first on), up to as many as ``count`` has (None: all)."""
    ends = np.array([0]), np.array([np.iinfo(np.int64).max])
    start, stop = (
        graph.constant(end) if name is None else graph.node("Shape", [name], start=1, end=2)
        for name, end in zip((behind, count), ends, strict=True)
    )
    return str(graph.node("Slice", [x, start, stop, graph.constant(np.array([1]))]))


def place_mass(graph: GraphBuilder, q: str, keys: str, mask: str, cap: float) -> str:
    """Softmax mass of each place of the keys, [B, T] float32, summed over heads and queries.

    A path beside the layer's attention, which stays fused. ``q`` [B, H_kv, G * S, D] gives
    half of the scores, which are soft-capped by ``cap``, if it is not 0; ``keys`` [B, H_kv, T, D];
    ``mask`` [B, 1, G * S, T] float32.
    """
    scores = graph.node("MatMul", [q, graph.node("Transpose", [keys], perm=[0, 1, 3, 2])])
    scores = graph.cast(scores, "float32")
    scores = graph.node("Mul", [scores, graph.constant(np.array(2, dtype=np.float32))])
    scores = signals.soft_cap(graph, scores, cap)
    weights = graph.node("Softmax", [graph.node("Add", [scores, mask])], axis=-1)
    axes = graph.constant(np.array([1, 2]))
    return str(graph.node("ReduceSum", [weights, axes], keepdims=0))


def attention_mass(graph: GraphBuilder, masses: list[str]) -> None:
    """Output ``attention_mass`` [B, C] from that of some layers."""
    total = masses[0] if len(masses) == 1 else graph.node("Sum", masses)
    graph.node("Identity", [total], ["attention_mass"])
