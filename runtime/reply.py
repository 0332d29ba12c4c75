"""A reply and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgechat.runtime.coherence import Coherence


@dataclass
class Usage:
    """What one reply cost.

    ``fed_tokens``: prompt tokens computed for this turn; ``reused_tokens``: prompt tokens whose
    KV was computed in an earlier turn (evicted since or not); ``evicted_tokens``: slots dropped
    since the reply before; ``lost_tokens``: those of them that the archive could not take, for its
    disk is full; ``recalled_tokens``: slots brought back from the archive;
    ``first_token_seconds``: from the call until something can be shown; ``tokens_per_second``:
    decode speed after the first token.
    """

    fed_tokens: int = 0
    reused_tokens: int = 0
    reply_tokens: int = 0
    evicted_tokens: int = 0
    lost_tokens: int = 0
    recalled_tokens: int = 0
    first_token_seconds: float = 0.0
    tokens_per_second: float = 0.0


@dataclass
class Reply:
    """A finished reply. ``finish_reason`` is stop, length or cancelled; ``coherence`` is there
    when it was checked."""

    text: str
    usage: Usage
    finish_reason: str
    coherence: Coherence | None = None


@dataclass
class Generation:
    """A reply in the making."""

    ids: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    finish: str = "cancelled"  # unless generation comes to its own end
    complete: bool = False  # the text shows all of the ids
