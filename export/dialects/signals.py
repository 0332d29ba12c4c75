"""What tells how much a token matters, as far as all backends spell it alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from edgechat.export.graph import GraphBuilder
from edgechat.export.spec import AnyLinear, Linear

MASS_DEPTHS = (0.5,)  # which layers' attention is summed, as parts of the depth


def mass_layers(windows: Sequence[int]) -> tuple[int, ...]:
    """Layers whose attention mass the graph gives; ``windows`` are all layers' (0: none).

    A layer that sees only a window says nothing about older tokens, so the nearest one without
    a window is taken, where there is any.
    """
    layers = range(len(windows))
    whole = [i for i in layers if not windows[i]] or layers
    wanted = [min(len(windows) - 1, round(len(windows) * depth)) for depth in MASS_DEPTHS]
    return tuple(sorted({min(whole, key=lambda i: abs(i - depth)) for depth in wanted}))


def split_rows(graph: GraphBuilder, x: str) -> tuple[str, str]:
    """``x`` [B, Q + L, E] as its first Q rows (for surprisal) and the L others (for logits)."""
    count = graph.node("Shape", ["targets"], start=1, end=2)
    zero, end, axis = (graph.constant(np.array([n])) for n in (0, np.iinfo(np.int64).max, 1))
    first = graph.node("Slice", [x, zero, count, axis])
    return str(first), str(graph.node("Slice", [x, count, end, axis]))


def first_rows(head: AnyLinear, count: int) -> AnyLinear:
    """The part of ``head`` that gives the logits of the first ``count`` ids."""
    bias = None if head.bias is None else head.bias[:count]
    if isinstance(head, Linear):
        return Linear(head.weight[:count], bias)
    codes, scales = head.codes[:count], head.scales[:count]
    return dataclasses.replace(head, codes=codes, scales=scales, bias=bias)


def surprisal(graph: GraphBuilder, own: str, logits: str) -> None:
    """Output ``surprisal`` [B, Q]: -log p of each target, float32.

    From its own logit [B, Q] and the logits of the first SURPRISAL_IDS ids [B, Q, n]: p's
    partition sums over those only, a sixth of the head's cost for a vocabulary of 49,152, and is
    kept from falling below the token's own weight.
    """
    # lse = x - log_softmax(x) at any place; LogSoftmax is vectorised, ReduceLogSumExp is not.
    place = graph.constant(np.array(0))
    one = graph.node("Gather", [logits, place], axis=2)
    log_p = graph.node("Gather", [graph.node("LogSoftmax", [logits], axis=-1), place], axis=2)
    partition = graph.node("Sub", [one, log_p])
    graph.node("Relu", [graph.node("Sub", [partition, own])], ["surprisal"])


def soft_cap(graph: GraphBuilder, x: str, cap: float, dtype: str = "float32") -> str:
    """cap * tanh(x / cap) of ``x``, which has the type ``dtype``; ``x`` where ``cap`` is 0."""
    if not cap:
        return x
    constant = graph.constant(np.array(cap, dtype=dtype))
    tanh = graph.node("Tanh", [graph.node("Div", [x, constant])])
    return str(graph.node("Mul", [tanh, constant]))


def place_mass(graph: GraphBuilder, q: str, keys: str, mask: str, cap: float) -> str:
    """Softmax mass of each place of the keys, [B, T] float32, summed over heads and queries.

    A path beside the layer's attention, which stays fused. ``q`` [B, H_kv, G * S, D] gives
    half of the scores, which are soft-capped by ``cap``, if it is not 0; ``keys`` [B, H_kv, T, D];
    ``mask`` [B, 1, G * S, T] float32.
    """
    scores = graph.node("MatMul", [q, graph.node("Transpose", [keys], perm=[0, 1, 3, 2])])
    scores = graph.cast(scores, "float32")
    scores = graph.node("Mul", [scores, graph.constant(np.array(2, dtype=np.float32))])
    scores = soft_cap(graph, scores, cap)
    weights = graph.node("Softmax", [graph.node("Add", [scores, mask])], axis=-1)
    axes = graph.constant(np.array([1, 2]))
    return str(graph.node("ReduceSum", [weights, axes], keepdims=0))


def attention_mass(graph: GraphBuilder, masses: list[str]) -> None:
    """Output ``attention_mass`` [B, C] from that of some layers."""
    total = masses[0] if len(masses) == 1 else graph.node("Sum", masses)
    graph.node("Identity", [total], ["attention_mass"])
