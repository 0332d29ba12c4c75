"""What the runtime needs of a backend; nothing above this knows which one runs."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
Slots = NDArray[np.int64]
Logits = NDArray[np.float32]


class Engine(Protocol):
    """Runs the graph over KV buffers of fixed capacity that it owns, written in place.

    A token's rotary position is the number of its slot, so every slot in front of it in its row
    is older and the cache never holds a gap.
    """

    rows: int
    capacity: int
    vocab_size: int
    first_alone: bool
    """Whether the first token of a text should be a step of its own: it has activations hundreds
    of times above all others, and spoils the scale it shares with them in an int8 step."""

    def step(self, tokens: Tokens, lengths: NDArray[np.int32], all_logits: bool = False) -> Logits:
        """Feed ``tokens`` [B, S] behind the ``lengths`` [B] valid slots of each row.

        Returns logits [B, 1, V] of the last token, or [B, S, V] with ``all_logits``. The array
        is a view that the next step overwrites. The caller keeps lengths + S within capacity.
        """

    def compact(self, row: int, kept: Slots) -> None:
        """Move the slots ``kept`` (ascending) to 0, 1, 2, … and rotate keys to their new place."""

    def close(self) -> None:
        """Release buffers and session; the engine must not be used afterwards."""
