"""edgechat: long conversations with small quantised language models on the edge.

``from edgechat import Chat`` is the whole API a program needs. Imports are lazy so that the
device pays only for what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgechat.errors import EdgechatError

if TYPE_CHECKING:
    from edgechat.chat import Chat, Reply, SamplingSettings, Usage

__version__ = "0.1.0"
__all__ = ["Chat", "EdgechatError", "Reply", "SamplingSettings", "Usage", "__version__"]


def __getattr__(name: str) -> Any:
    if name in {"Chat", "Reply", "SamplingSettings", "Usage"}:
        from edgechat import chat

        return getattr(chat, name)
    raise AttributeError(f"module 'edgechat' has no attribute {name!r}")
