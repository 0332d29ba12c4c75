"""Casts between float32 and the type products are computed in."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgechat.export.graph import GraphBuilder


class Floats:
    """For dialects whose products are of the type ``_dtype``, float16 or float32."""

    _graph: GraphBuilder
    _dtype: np.dtype[Any]

    def _half(self, x: str) -> str:
        """float32 to the type of the products."""
        return self._graph.cast(x, self._dtype.name) if self._dtype != np.float32 else x

    def _float32(self, x: str) -> str:
        return self._graph.cast(x, "float32") if self._dtype != np.float32 else x

    def _constant(self, value: Any) -> str:
        return self._graph.constant(np.asarray(value).astype(self._dtype))
