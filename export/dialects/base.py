"""The verbs a backend must spell; the decoder speaks only these."""

from __future__ import annotations

from typing import Protocol

from edgechat.bundle import TensorInfo
from edgechat.export.spec import AnyLinear, Array


class Dialect(Protocol):
    """Spells a decoder for one backend. Values are names of graph tensors.

    Hidden states are [B, S, hidden] until ``select`` and [B, P, hidden] after it, where P is the
    number of positions whose result the caller asked for.
    """

    def embed(self, table: Array) -> str:
        """Rows of ``table`` times the spec's embedding scale."""

    def add(self, residual: str, update: str, post_norm: Array | None) -> str:
        """residual + update; with ``post_norm`` the update is normed first."""

    def add_norm(
        self, residual: str, update: str | None, post_norm: Array | None, gamma: Array | None
    ) -> tuple[str, str]:
        """(norm(sum), sum), the sum as in :meth:`add`; without ``update`` nothing is added,
        without ``gamma`` the sum is not normed."""

    def linear(self, x: str, linear: AnyLinear, role: str, name: str) -> str:
        """``role`` is qkv, o, gate_up, down or head and chooses the weight format."""

    def attention(self, layer: int, qkv: str, q_norm: Array | None, k_norm: Array | None) -> str:
        """Norms of queries and keys, rotary, cache update and causal attention, inside the
        layer's window; [B, S, heads * head_dim]."""

    def select(self, x: str) -> str:
        """Keep only the positions whose result was asked for."""

    def hidden(self, x: str) -> None:
        """Offer the residual stream ``x`` as the output ``hidden``, if the graph has it."""

    def activation(self, gate_up: str) -> str:
        """act(first half) * second half, or act of it all where the MLP is not gated."""

    def logits(self, x: str, head: AnyLinear | None) -> None:
        """Vocabulary projection, and the surprisal of tokens, if the graph tells it; without
        ``head`` they are tied: the table given to ``embed``."""

    def contract(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        """Inputs and outputs for the manifest, one entry for all layers' cache tensors."""

    @property
    def weight_bytes_per_token(self) -> int:
        """Bytes of weights one decode step reads."""
