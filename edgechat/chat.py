"""The public API: one object that talks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from edgechat.assembly import make_cache, make_engine, needs_importance
from edgechat.bundle import Bundle, load_bundle
from edgechat.cache_map import MappedTurn, map_cache
from edgechat.errors import EdgechatError, SessionError, SettingsError
from edgechat.runtime.conversation import Conversation
from edgechat.runtime.engine import Engine
from edgechat.runtime.reply import Reply, Usage
from edgechat.runtime.sampling import Sampler, SamplingSettings
from edgechat.runtime.session_file import UNSOUND, load_state, save_state
from edgechat.runtime.state import State, capture, restore
from edgechat.runtime.text import TextCodec
from edgechat.settings import DEFAULT_PROFILE, Settings, load_profile
from edgechat.validate import build
from edgechat.warm_up import warm_up

__all__ = ["Chat", "Reply", "SamplingSettings", "Usage"]


class Chat:
    """A conversation with a bundle's model.

    >>> with Chat.open("SmolLM2-135M-Instruct-int8", system="You guard a castle.") as chat:
    ...     for piece in chat.stream("Who goes there?"):
    ...         print(piece, end="", flush=True)
    ...     print(chat.usage)

    Each turn feeds only what the model has not read yet. Not thread-safe, except ``cancel``.
    """

    def __init__(
        self,
        bundle: Bundle,
        settings: Settings,
        capacity: int,
        system: str | None,
        engine: Engine | None = None,
    ) -> None:
        self.settings = settings
        self._bundle = bundle
        self._codec = TextCodec(bundle)
        self._engine = engine or make_engine(
            bundle,
            capacity,
            settings.threads,
            needs_importance(settings),
            settings.allow_fallback,
        )
        self._conversation = Conversation(
            make_cache(bundle, settings, self._engine, self._codec),
            self._codec,
            _checked_text(system, "the system prompt"),
            settings.upkeep(),
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
        recall_blocks: int | None = None,
        archive_folder: str | Path | None = None,
        threads: int | None = None,
        max_tokens: int | None = None,
        allow_fallback: bool = False,
        sampling: SamplingSettings | None = None,
        verify: bool = True,
    ) -> Chat:
        """Load a bundle folder.

        ``profile`` names a profile, a YAML file, or several joined by commas (later ones win);
        what is given beside it overrides it. ``allow_fallback`` runs a bundle for CUDA on the CPU,
        slowly, where CUDA is missing, and warns. ``verify`` compares every file with its checksum
        first. Raises BundleError, ProfileError, SettingsError, EngineError or ArchiveError, each
        with the remedy.
        """
        settings = load_profile(profile).override(
            cache_window=window,
            sinks=sinks,
            policy=policy,
            recall_blocks=recall_blocks,
            archive_folder=None if archive_folder is None else str(archive_folder),
            threads=threads,
            max_tokens=max_tokens,
            allow_fallback=allow_fallback or None,
            sampling=sampling,
        )
        loaded = load_bundle(bundle)
        capacity = settings.slots(loaded.manifest.max_capacity, window is not None)
        if verify:
            loaded.verify()
        chat = cls(loaded, settings, capacity, system)
        if settings.prefill_optimization:
            warm_up(chat._conversation, loaded)
        return chat

    @classmethod
    def load(
        cls,
        bundle: str | Path,
        path: str | Path,
        *,
        archive_folder: str | Path | None = None,
        threads: int | None = None,
        max_tokens: int | None = None,
        allow_fallback: bool = False,
        sampling: SamplingSettings | Mapping[str, Any] | None = None,
        verify: bool = True,
    ) -> Chat:
        """Go on with a conversation that ``save`` wrote, with the settings it had.

        ``sampling``: new settings, or those that change by name. Raises SessionError when the
        file is missing, damaged or of another bundle.
        """
        if isinstance(sampling, Mapping):
            SamplingSettings(**sampling)  # TypeError for a name that is none
        loaded = load_bundle(bundle)
        if verify:
            loaded.verify()
        state = load_state(Path(path), loaded.identity)
        try:
            kept = build(Settings, state.facts["settings"])
            if isinstance(sampling, Mapping):
                sampling = dataclasses.replace(kept.sampling, **sampling) if sampling else None
            settings = kept.override(
                archive_folder=None if archive_folder is None else str(archive_folder),
                threads=threads,
                max_tokens=max_tokens,
                allow_fallback=allow_fallback,
                sampling=sampling,
            )
            chat = cls(loaded, settings, state.facts["capacity"], None)
            restore(chat._conversation, state)
            if sampling is None:
                chat._sampler.state = state.facts["sampler"]
        except UNSOUND as error:
            raise SessionError(f"{path} is no session of this edgechat ({error!r}).") from None
        return chat

    def save(self, path: str | Path) -> None:
        """Write the conversation, its cache and its archive to one file; a reply that is still
        being read ends here.

        The file appears complete or not at all; an old one of the same name is replaced. Raises
        SessionError when it cannot be written.
        """
        self._check_open()
        save_state(Path(path), self._state(), self._bundle.identity)

    def fork(self) -> Chat:
        """A second chat that goes on from here by itself: same weights in memory, own cache,
        history and copy of the archive. A reply that is still being read ends here."""
        self._check_open()
        sibling = self._engine.sibling()
        other = Chat(self._bundle, self.settings, sibling.capacity, None, sibling)
        state = self._state()
        restore(other._conversation, state)
        other._sampler.state = state.facts["sampler"]
        return other

    def _state(self) -> State:
        state = capture(self._conversation)
        state.facts["settings"] = dataclasses.asdict(self.settings)
        state.facts["capacity"] = self._engine.capacity
        state.facts["sampler"] = self._sampler.state
        state.facts["bundle_name"] = self._bundle.manifest.name
        return state

    def _check_open(self) -> None:
        if self._closed:
            raise EdgechatError("this chat is closed; open a new one.")

    def stream(
        self, text: str, *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """Say ``text``; yields the reply piece by piece. ``reply`` holds it afterwards.

        The reply ends at the model's own end token, at ``max_tokens`` tokens, or before the
        first of the strings ``stop``. Stopping the iteration keeps what came so far.
        """
        self._check_open()
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

    def edit(self, turn: int, text: str) -> None:
        """Change what turn number ``turn`` of ``history`` says, user's or model's.

        Read with the next message: in place when the change is a small part of the conversation
        (``delta_threshold``), else with all that follows.
        """
        checked = _checked_text(text, "the text")
        if checked is None or type(turn) is not int:
            raise TypeError("edit takes the number of a turn and a str")
        self._check_open()
        self._conversation.edit(turn, checked)

    def undo(self) -> str:
        """Take back the last message and its reply; returns the message."""
        self._check_open()
        return self._conversation.undo()

    def regenerate(self, *, max_tokens: int | None = None, stop: Sequence[str] = ()) -> Reply:
        """Answer the last message again and return the whole reply; as ``stream_again``."""
        for _ in self.stream_again(max_tokens=max_tokens, stop=stop):
            pass
        reply = self.reply
        assert reply is not None
        return reply

    def stream_again(
        self, *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """Answer the last message again, piece by piece; only the reply is computed.

        The old answer stays when no new one comes about: when it fails, or is cancelled before
        it begins. Options as for ``stream``.
        """
        self._check_open()
        return self._again(max_tokens, stop)

    def _again(self, max_tokens: int | None, stop: Sequence[str]) -> Iterator[str]:
        c = self._conversation
        c.finish()
        old, last, summary = c.turns[-2:], c.last, (c.summary, c.summarised)
        question, before, first = self.undo(), len(c.turns), None
        try:
            pieces = self.stream(question, max_tokens=max_tokens, stop=stop)
            first = next(pieces, None)  # once this is there, the answer will be, however it ends
        finally:
            if first is None and len(c.turns) == before:
                c.turns += old
                c.last = c.last or last
                c.summary, c.summarised = summary
        if first is not None:
            yield first
            yield from pieces

    def pin(self, text: str) -> None:
        """Keep ``text`` before the model for ever, as a line of the system prompt.

        CapacityError when system prompt and pins would take more than half of the cache.
        """
        checked = _checked_text(text, "the text")
        if not checked:
            raise TypeError("pin takes a str that is not empty")
        self._check_open()
        self._conversation.pin(checked)

    def unpin(self, text: str) -> None:
        """Take back a ``pin``; SettingsError when there is none of that text."""
        self._check_open()
        self._conversation.unpin(text)

    @property
    def pins(self) -> list[str]:
        """What was pinned and is still."""
        return list(self._conversation.pins)

    def cache_map(self) -> list[MappedTurn]:
        """The conversation as the cache sees it: every token with what it is now."""
        self._check_open()
        self._conversation.finish()
        return map_cache(self._conversation)

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
        """The system prompt; a new one applies from the next turn. What changed is read in
        place, or (``delta_threshold``) with the history again when it is much."""
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
        self._check_open()
        self._conversation.reset()

    def close(self) -> None:
        """Free the model and the cache."""
        self._conversation.finish()
        self._closed = True
        memory = self._conversation.cache.memory
        if memory is not None:
            memory.archive.close()
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
