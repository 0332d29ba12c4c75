"""Which positions are read for surprisal, for TensorRT."""

from __future__ import annotations

import numpy as np

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
