"""What the runtime needs of a backend; nothing above this knows which one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgechat.bundle import Manifest
from edgechat.errors import EngineError

Tokens = NDArray[np.int64]
Slots = NDArray[np.int64]
Logits = NDArray[np.float32]
KV = NDArray[Any]  # float32 or float16, or the codes of an int8 cache


@dataclass
class Signals:
    """What a step tells about the tokens it fed; views that the next step overwrites.

    ``surprisal`` [B, S - 1]: -log p in nats of all tokens but the first (its own is in the logits
    of the step before); ``hidden`` [B, S, E]: the residual stream a little before
    half of the depth; ``attention_mass`` [B, C]: softmax each slot got in a middle layer, summed
    over queries and heads.
    """

    surprisal: NDArray[np.float32]
    hidden: NDArray[np.float32]
    attention_mass: NDArray[np.float32]


class Engine(Protocol):
    """Runs the graph over KV buffers of fixed capacity that it owns, written in place.

    A token's rotary position is the number of its slot, so every slot in front of it in its row
    is older and the cache never holds a gap.
    """

    rows: int
    capacity: int
    vocab_size: int
    hidden_size: int
    num_heads: int
    first_alone: bool
    """Whether the first token of a text should be a step of its own: it has activations hundreds
    of times above all others, and spoils the scale it shares with them in an int8 step."""

    moves_keys: bool
    """Whether ``compact`` can move slots and ``write`` can put them elsewhere. Else ``compact``
    only cuts off the end, ``write`` puts slots back where they were, and tokens are fed again."""

    signals: Signals | None
    """Of the last step; None unless the engine was made to give them."""

    def most_tokens(self, all_logits: bool) -> int:
        """Most tokens a step can feed; fewer, mostly, when the logits of all are asked for."""

    def step(self, tokens: Tokens, lengths: NDArray[np.int32], all_logits: bool = False) -> Logits:
        """Feed ``tokens`` [B, S] behind the ``lengths`` [B] valid slots of each row.

        Returns logits [B, 1, V] of the last token, or [B, S, V] with ``all_logits``. The array
        is a view that the next step overwrites. The caller keeps lengths + S within capacity.
        """

    def compact(self, row: int, kept: Slots) -> None:
        """Move the slots ``kept`` (ascending) to 0, 1, 2, … and rotate keys to their new place."""

    def read(self, row: int, start: int, count: int) -> KV:
        """Keys and values of ``count`` slots, a copy [layers, 2, H, count, D]; the keys are
        rotated for their slots."""

    def write(self, row: int, start: int, kv: KV, origin: int) -> None:
        """Put ``kv`` as ``read`` gave it for the slots from ``origin`` on to those from ``start``
        on; keys are rotated to their new place."""

    def sibling(self) -> Engine:
        """An engine with buffers of its own and the same weights in memory."""

    def close(self) -> None:
        """Release buffers and session; the engine must not be used afterwards."""


def check_capacity(manifest: Manifest, capacity: int, importance: bool) -> None:
    """EngineError unless the bundle allows a cache that long, and gives signals if asked to."""
    if not 2 <= capacity <= manifest.max_capacity:
        raise EngineError(
            f"a KV cache of {capacity:,} tokens does not fit this bundle, which allows 2 to "
            f"{manifest.max_capacity:,}; choose a smaller window or export with --capacity."
        )
    if importance and not manifest.has_importance:
        why, remedy = "with --no-importance", "export it again without that option, or use"
        if manifest.graph.dialect == "optimum":
            why, remedy = "by optimum, whose graphs tell no importance", "use"
        raise EngineError(
            f"the bundle was exported {why}, so the policy 'key' and recall cannot work; {remedy} "
            "the policy 'window' and 0 recall blocks (--policy window --recall-blocks 0)."
        )
