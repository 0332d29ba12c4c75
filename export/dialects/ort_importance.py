"""What tells how much a token matters, for ONNX Runtime: surprisal and attention mass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgechat.bundle import SURPRISAL_IDS
from edgechat.export.dialects import signals
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.blockwise import BLOCK, quantize_blocks
from edgechat.export.spec import AnyLinear, Array, Int8Linear, Linear


def surprisal(
    graph: GraphBuilder,
    x: str,
    rows: str,
    head: AnyLinear,
    project: Callable[[AnyLinear], str],
    cap: Callable[[str], str],
) -> None:
    """Output ``surprisal`` [B, Q]: -log p of ``targets`` given the normed states ``x`` [B, Q, E].

    ``rows`` [B, Q, E] are those of the ``targets`` in the ``head``; ``project`` spells the
    product of ``x`` with a part of the head, ``cap`` what is done to every logit. All is float32.
    """
    # A product with ones: ONNX Runtime 1.23 gives the sum of no rows [B, 0, E] a wrong shape.
    width = (head.weight if isinstance(head, Linear) else head.codes).shape[1]
    ones = graph.constant(np.ones((width, 1), dtype=np.float32))
    own = graph.node("MatMul", [graph.node("Mul", [rows, x]), ones])
    own = graph.node("Squeeze", [own, graph.constant(np.array([-1]))])
    if head.bias is not None:
        bias = graph.weight("head.bias", head.bias)
        own = graph.node("Add", [own, graph.node("Gather", [bias, "targets"])])
    own = cap(own)
    logits = cap(project(signals.first_rows(head, SURPRISAL_IDS)))
    signals.surprisal(graph, own, logits)


def attention_mass(graph: GraphBuilder, probabilities: list[str]) -> None:
    """Output ``attention_mass`` [B, C]: softmax summed over layers, heads and queries.

    ``probabilities`` are [B, H, S, T] each, T ≤ C the slots in use.
    """
    axes = graph.constant(np.array([1, 2]))
    sums = [graph.node("ReduceSum", [p, axes], keepdims=0) for p in probabilities]
    total = sums[0] if len(sums) == 1 else graph.node("Sum", sums)
    capacity = graph.node("Shape", ["past_key.0"], start=2, end=3)
    used = graph.node("Shape", [total], start=1, end=2)
    free = graph.node("Sub", [capacity, used])
    zero = graph.constant(np.array([0]))
    axis = graph.constant(np.array([1]))
    pads = graph.node("Concat", [zero, free], axis=0)
    graph.node("Pad", [total, pads, "", axis], ["attention_mass"])


def target_rows(graph: GraphBuilder, head: AnyLinear, stored: str | None) -> str:
    """The head's rows of ``targets``, [B, Q, E] float32.

    ``stored`` names the graph's float32 head [V, E], if it has one. An 8-bit head lies in another
    order than by rows, so its rows are stored once more; only those asked for are ever read from
    the file.
    """
    if stored is not None:
        return str(graph.node("Gather", [stored, "targets"]))
    if isinstance(head, Int8Linear):
        return gather_rows(graph, "head.rows", head.codes, head.scales, "targets")
    if not isinstance(head, Linear):
        raise TypeError("head: static scales are not spelled for ONNX Runtime")
    return gather_blocks(graph, "head.rows", head.weight, "targets")


def gather_rows(
    graph: GraphBuilder, name: str, codes: NDArray[np.int8], scales: Array, index: str
) -> str:
    """Rows ``index`` of codes [V, E] with a scale a row, in float32."""
    picked = graph.node("Gather", [graph.weight(name, codes), index])
    factors = graph.node("Gather", [graph.weight(f"{name}.scale", scales[:, None]), index])
    return str(graph.node("Mul", [graph.cast(picked, "float32"), factors]))


def gather_blocks(graph: GraphBuilder, name: str, table: Array, index: str) -> str:
    """Rows ``index`` of ``table`` [V, E], stored in 8 bits with a scale for every BLOCK."""
    codes, scales = quantize_blocks(table, BLOCK)
    data = graph.weight(name, codes.reshape(len(table), -1))
    rows: str = graph.node(
        "GatherBlockQuantized",
        [data, index, graph.weight(f"{name}.scale", scales)],
        domain="com.microsoft",
        bits=8,
        block_size=BLOCK,
        gather_axis=0,
        quantize_axis=1,
    )
    return rows
