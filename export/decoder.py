"""Walks a DecoderSpec once and says it in a dialect."""

from __future__ import annotations

from collections.abc import Callable

from edgechat.export.dialects.base import Dialect
from edgechat.export.spec import AnyLinear, DecoderSpec, Weights

Progress = Callable[[int], None]
HIDDEN_DEPTH = 0.45  # of the layers: where the hidden state tells best what a text is about


def build_decoder(
    spec: DecoderSpec, weights: Weights[AnyLinear], dialect: Dialect, progress: Progress
) -> None:
    """Spell the whole decoder; ``progress`` is called with the number of finished layers.

    In the last layer everything after attention runs only for the positions whose result is
    asked for: nothing else can see it.
    """
    x = dialect.embed(weights.embedding())
    update = post_norm = None
    hidden_layer = min(round(spec.num_layers * HIDDEN_DEPTH), spec.num_layers - 1)
    for index in range(spec.num_layers):
        layer = weights.layer(index)
        normed, x = dialect.add_norm(x, update, post_norm, layer.attn_norm)
        if index == hidden_layer:
            dialect.hidden(x)
        qkv = dialect.linear(normed, layer.qkv, "qkv", f"layers.{index}.qkv")
        attended = dialect.attention(index, qkv, layer.q_norm, layer.k_norm)
        if index == spec.num_layers - 1:
            attended, x = dialect.select(attended), dialect.select(x)
        update = dialect.linear(attended, layer.o, "o", f"layers.{index}.o")
        if spec.parallel:
            normed, _ = dialect.add_norm(x, None, None, layer.mlp_norm)
            x = dialect.add(x, update, layer.attn_post_norm)
        else:
            normed, x = dialect.add_norm(x, update, layer.attn_post_norm, layer.mlp_norm)
        gate_up = dialect.linear(normed, layer.gate_up, "gate_up", f"layers.{index}.gate_up")
        hidden = dialect.activation(gate_up)
        update = dialect.linear(hidden, layer.down, "down", f"layers.{index}.down")
        post_norm = layer.mlp_post_norm
        progress(index + 1)
    normed, _ = dialect.add_norm(x, update, post_norm, weights.final_norm())
    dialect.logits(normed, None if spec.tied_embeddings else weights.head())
