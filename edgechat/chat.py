"""The public API: one object that talks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from edgechat.bundle import Bundle, load_bundle
from edgechat.errors import EdgechatError, SettingsError
from edgechat.runtime.conversation import Conversation, Reply, Usage
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.policies import make_policy
from edgechat.runtime.sampling import Sampler, SamplingSettings
from edgechat.runtime.text import TextCodec
from edgechat.settings import DEFAULT_PROFILE, Settings, load_profile

__all__ = ["Chat", "Reply", "SamplingSettings", "Usage"]


class Chat:
    """A conversation with a bundle's model.

    >>> with Chat.open("SmolLM2-135M-Instruct-int8", system="You guard a castle.") as chat:
    ...     for piece in chat.stream("Who goes there?"):
    ...         print(piece, end="", flush=True)
    ...     print(chat.usage)

    Each turn feeds only what the model has not read yet. Not thread-safe, except ``cancel``.
    """

    def __init__(self, bundle: Bundle, settings: Settings, capacity: int, system: str | None):
        from edgechat.runtime.onnx_engine import OnnxEngine

        self.settings = settings
        self._codec = TextCodec(bundle)
        self._engine = OnnxEngine(bundle, capacity, threads=settings.threads)
        cache = KVCache(self._engine, make_policy(settings.policy, settings.sinks))
        self._conversation = Conversation(
            cache, self._codec, _checked_text(system, "the system prompt")
        )
        self._sampler = Sampler(settings.sampling, self._codec.size)
        self._closed = False

    @classmethod
    def open(
        cls,
        bundle: str | Path,
        profile: str = DEFAULT_PROFILE,
        system: str | None = None,
        *,
        window: int | None = None,
        sinks: int | None = None,
        policy: str | None = None,
        threads: int | None = None,
        max_tokens: int | None = None,
        sampling: SamplingSettings | None = None,
        verify: bool = True,
    ) -> Chat:
        """Load a bundle folder.

        ``profile`` names a profile or a YAML file; what is given beside it overrides it.
        ``verify`` compares every file with its checksum first. Raises BundleError,
        ProfileError, SettingsError or EngineError, each with the remedy.
        """
        settings = load_profile(profile).override(
            cache_window=window,
            sinks=sinks,
            policy=policy,
            threads=threads,
            max_tokens=max_tokens,
            sampling=sampling,
        )
        make_policy(settings.policy, settings.sinks)  # refuse an unknown one before loading
        loaded = load_bundle(bundle)
        capacity = settings.capacity(loaded.manifest.max_capacity, window is not None)
        if verify:
            loaded.verify()
        return cls(loaded, settings, capacity, system)

    def stream(
        self, text: str, *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """Say ``text``; yields the reply piece by piece. ``reply`` holds it afterwards.

        The reply ends at the model's own end token, at ``max_tokens`` tokens, or before the
        first of the strings ``stop``. Stopping the iteration keeps what came so far.
        """
        if self._closed:
            raise EdgechatError("this chat is closed; open a new one.")
        if _checked_text(text, "the message") is None:
            raise TypeError("the message is a str, not None")
        if isinstance(stop, str) or not all(isinstance(s, str) for s in stop):
            raise TypeError("stop is a list of strings")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 0):
            raise SettingsError(f"max_tokens must be 0 or more, not {max_tokens!r}.")
        most = self.settings.max_tokens if max_tokens is None else max_tokens
        return self._conversation.stream(text, self._sampler, most, stop)

    def say(self, text: str, *, max_tokens: int | None = None, stop: Sequence[str] = ()) -> Reply:
        """Say ``text`` and return the whole reply; options as for ``stream``."""
        for _ in self.stream(text, max_tokens=max_tokens, stop=stop):
            pass
        reply = self.reply
        assert reply is not None
        return reply

    @property
    def reply(self) -> Reply | None:
        """The last reply; one that its reader left unfinished ends here."""
        self._conversation.finish()
        return self._conversation.last

    @property
    def usage(self) -> Usage | None:
        """What the last reply cost."""
        return None if self.reply is None else self.reply.usage

    @property
    def history(self) -> list[tuple[str, str]]:
        """(role, text) of every turn so far."""
        self._conversation.finish()
        return [(turn.role, turn.content) for turn in self._conversation.turns]

    @property
    def system(self) -> str | None:
        """The system prompt; a new one applies from the next turn and re-reads the history."""
        return self._conversation.system

    @system.setter
    def system(self, text: str | None) -> None:
        self._conversation.system = _checked_text(text, "the system prompt")

    @property
    def cache_used(self) -> tuple[int, int]:
        """(valid slots, capacity) of the KV cache, in tokens; what ``reset`` frees goes with the
        next turn."""
        slots = self._conversation.cache.slots
        return slots.length, slots.capacity

    def cancel(self) -> None:
        """End the reply in progress; may be called from a signal handler or another thread."""
        self._conversation.cancel()

    def reset(self) -> None:
        """Start anew with the same system prompt, which stays in the cache."""
        self._conversation.reset()

    def close(self) -> None:
        """Free the model and the cache."""
        self._conversation.finish()
        self._closed = True
        self._engine.close()

    def __enter__(self) -> Chat:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _checked_text(text: str | None, what: str) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise SettingsError(f"{what} is not valid Unicode text.") from None
    return text
