"""What tells how much a token matters, for TensorRT; see ort_importance.py for the contract."""

from __future__ import annotations

import numpy as np

from edgechat.export.graph import GraphBuilder


def surprisal(graph: GraphBuilder, own: str, scores: str) -> None:
    """Output ``surprisal`` [B, Q]: from each target's own logit [B, Q] and the logits of the
    common ids [B, Q, n], both float32."""
    place = graph.constant(np.array(0))
    one = graph.node("Gather", [scores, place], axis=2)
    log_p = graph.node("Gather", [graph.node("LogSoftmax", [scores], axis=-1), place], axis=2)
    partition = graph.node("Sub", [one, log_p])
    graph.node("Relu", [graph.node("Sub", [partition, own])], ["surprisal"])


def slot_mass(graph: GraphBuilder, q: str, keys: str, mask: str, scale: float) -> str:
    """Softmax mass of each slot, [B, T] float32, summed over heads and queries.

    A path beside the layer's attention, which stays fused. ``q`` is [B, H_kv, G * S, D], its
    scores are multiplied by ``scale``; ``keys`` [B, H_kv, T, D]; ``mask`` [B, 1, G * S, T] float32.
    """
    scores = graph.node("MatMul", [q, graph.node("Transpose", [keys], perm=[0, 1, 3, 2])])
    scores = graph.node("Cast", [scores], to=1)
    scores = graph.node("Mul", [scores, graph.constant(np.array(scale, dtype=np.float32))])
    weights = graph.node("Softmax", [graph.node("Add", [scores, mask])], axis=-1)
    axes = graph.constant(np.array([1, 2]))
    return str(graph.node("ReduceSum", [weights, axes], keepdims=0))


def attention_mass(graph: GraphBuilder, masses: list[str]) -> None:
    """Output ``attention_mass`` [B, C] from that of some layers."""
    total = masses[0] if len(masses) == 1 else graph.node("Sum", masses)
    graph.node("Identity", [total], ["attention_mass"])
