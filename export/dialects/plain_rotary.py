"""Rotary embedding in plain operators, which TensorRT fuses into one kernel."""

from __future__ import annotations

import numpy as np

from edgechat.export.graph import GraphBuilder
from edgechat.export.rotary import rotary_tables
from edgechat.export.spec import Array, RotarySpec


def wide_tables(rotary: RotarySpec, head_dim: int, positions: int) -> tuple[Array, Array]:
    """cos and signed sin for :func:`rotate`, [positions, head_dim] float32.

    The sine is negative where it meets the second half; features that are not rotated get
    cos 1 and sin 0.
    """
    cos, sin = rotary_tables(rotary, positions)
    rest = np.zeros((positions, head_dim - rotary.dim), dtype=np.float32)
    return np.hstack([cos, cos, rest + 1]), np.hstack([-sin, sin, rest])


def rotate(
    graph: GraphBuilder, rotary: RotarySpec, head_dim: int, x: str, cos: str, sin: str
) -> str:
    """``x`` [..., head_dim] · cos + (second half, first half) · sin."""
    half, rest = rotary.dim // 2, head_dim - rotary.dim
    sizes = [half, half, rest] if rest else [half, half]
    split = graph.constant(np.array(sizes))
    first, second, *tail = graph.node("Split", [x, split], len(sizes), axis=-1)
    swapped = graph.node("Concat", [second, first, *tail], axis=-1)
    return str(graph.node("Add", [graph.node("Mul", [x, cos]), graph.node("Mul", [swapped, sin])]))
