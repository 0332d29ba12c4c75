"""Which slots stay when the cache is full. A policy is a pure function of the slots."""

from __future__ import annotations

from edgechat.errors import SettingsError
from edgechat.runtime.policies.base import Kept, Policy
from edgechat.runtime.policies.full import Full
from edgechat.runtime.policies.key import Key
from edgechat.runtime.policies.window import Window

__all__ = ["POLICIES", "Kept", "Policy", "make_policy"]

POLICIES = ("key", "window", "full")


def make_policy(name: str, sinks: int, keys: int = 0) -> Policy:
    """The policy called ``name``; ``keys`` is in tokens. SettingsError lists the known names."""
    if name == "key":
        return Key(sinks, keys)
    if name == "window":
        return Window(sinks)
    if name == "full":
        return Full()
    raise SettingsError(f"policy {name!r} is unknown; choose one of {', '.join(POLICIES)}.")
