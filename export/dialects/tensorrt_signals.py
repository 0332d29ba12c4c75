"""Attention mass for TensorRT."""

from __future__ import annotations

import numpy as np

from edgechat.export.dialects import signals
from edgechat.export.graph import GraphBuilder


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
