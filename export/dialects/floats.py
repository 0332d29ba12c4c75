"""Casts between float32 and the type products are computed in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from edgechat.export.graph import GraphBuilder
from edgechat.export.spec import Array


class Floats(ABC):
    """For dialects whose products are of the type ``_dtype``, float16 or float32, and whose
    residual stream and norms are float32."""

    _graph: GraphBuilder
    _dtype: np.dtype[Any]

    def _half(self, x: str) -> str:
        """float32 to the type of the products."""
        return self._graph.cast(x, self._dtype.name) if self._dtype != np.float32 else x

    def _float32(self, x: str) -> str:
        return self._graph.cast(x, "float32") if self._dtype != np.float32 else x

    @abstractmethod
    def _norm(self, x: str, gamma: Array) -> str:
        """RMSNorm of ``x`` in float32."""

    def _normed(self, update: str, post_norm: Array | None) -> str:
        """What is added to the residual stream, in float32 and normed by ``post_norm``."""
        update = self._float32(update)
        return update if post_norm is None else self._norm(update, post_norm)

    def add(self, residual: str, update: str, post_norm: Array | None) -> str:
        return str(self._graph.node("Add", [residual, self._normed(update, post_norm)]))

    def _constant(self, value: Any) -> str:
        return self._graph.constant(np.asarray(value).astype(self._dtype))
