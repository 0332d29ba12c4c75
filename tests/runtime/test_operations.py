"""Thousands of random operations on a chat, against a plain list of what was said."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edgechat.chat import Chat
from edgechat.errors import CapacityError, SettingsError
from edgechat.runtime.text import Turn

SEQUENCES, LENGTH, CHECK_EVERY = 100, 100, 8  # 10,000 operations in all
WORDS = "s user a the fox jumps <over> é 猫 🙂 assistant 42 \n ab.".split(" ")
POLICIES: list[dict[str, Any]] = [
    {"policy": "key", "delta_threshold": 0.5, "archive_mib": 1},
    {"policy": "key", "key_token_ratio": 0.5, "delta_threshold": 0.0, "pinned_questions": 0},
    {"policy": "window", "delta_threshold": 0.2, "recall_blocks": 4},
    {"policy": "window", "recall_blocks": 0, "delta_threshold": 1.0},
    {"policy": "key", "cache_purge_interval": 3, "delta_threshold": 1.0, "pinned_questions": 9},
    {"policy": "window", "history_summary": 40, "coherence_check": "report"},
]


class Player:
    """Plays random operations on ``chat`` and on ``told``, what it should have heard."""

    def __init__(
        self,
        chat: Chat,
        bundle: Path,
        seed: int,
        file: Path,
        tell: Callable[..., str],
        prepare: Any,
    ) -> None:
        self.chat, self.bundle, self.file = chat, bundle, file
        self.tell, self.prepare = tell, prepare
        self.random = random.Random(seed)
        self.told: list[tuple[str, str]] = []
        self.pins: list[str] = []
        self.system: str | None = "s"
        self.done: list[str] = []

    def play(self) -> None:
        names = ["say"] * 8 + ["edit"] * 3 + ["undo", "regenerate"] * 2
        names += ["pin", "unpin", "system", "purge"]
        names += self.random.choices(
            ["leave", "cancel", "reset", "fork", "long", "load"], [3, 3, 1, 1, 1, 1]
        )
        name = self.random.choice(names)
        self.done.append(name)
        getattr(self, f"do_{name}")()
        assert self.chat.history == self.told
        assert self.chat.pins == self.pins

    def text(self, most: int = 6) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(0, most)))

    def do_say(self, most: int = 6) -> None:
        self._speak(self.text(most), self.text(), again=False)

    def do_leave(self) -> None:
        """The reader has enough after some pieces."""
        text, count = self.text(), self.random.randint(0, 9)
        self.done[-1] += f"({text!r}, {count})"
        self.prepare(self.chat, "a 猫 jumps é 🙂")
        pieces = [p for _, p in zip(range(count), self.chat.stream(text), strict=False)]
        if count:
            assert self.chat.reply is not None and self.chat.reply.text.startswith("".join(pieces))
            self.told += [("user", text), ("assistant", self.chat.reply.text)]

    def do_cancel(self) -> None:
        """Before the prompt is read."""
        text = self.text(40)
        self.done[-1] += f"({text!r})"
        self.prepare(self.chat, "never mind")
        stream = self.chat.stream(text)
        self.chat.cancel()
        reply = "".join(stream)
        if len(self.chat.history) > len(self.told):
            self.told += [("user", text), ("assistant", reply)]

    def do_long(self) -> None:
        self.do_say(40)

    def do_regenerate(self) -> None:
        if self.told:
            del self.told[-1]
            self._speak(self.told.pop()[1], self.text(), again=True)

    def _speak(self, text: str, reply: str, again: bool) -> None:
        self.done[-1] += f"({text!r}, {reply!r})"
        talk = self.chat._conversation
        told = [Turn(*turn) for turn in self.told]
        if again:  # as undo, which comes first
            talk._forget_summary(len(told))
        talk._check_system()  # which shortens the summary
        system = "\n".join(t for t in [self.system, *self.pins, talk.summary] if t)
        if system or self.system is not None:
            told.insert(0, Turn("system", system))
        assert self.chat._codec.template is not None
        prompt = [turn.message for turn in [*told, Turn("user", text)]]
        expected = self.chat._codec.template.render(prompt) + reply
        said = self.tell(self.chat, None if again else text, reply)
        assert said == reply
        self.told += [("user", text), ("assistant", reply)]
        ids = talk.transcript.ids.tolist()
        assert self.chat._codec.tokenizer.decode(ids, skip_special_tokens=False) == expected
        usage = self.chat.usage
        assert usage is not None and usage.fed_tokens > 0
        read = len(ids) - usage.reply_tokens
        assert usage.reused_tokens <= read <= usage.fed_tokens + usage.reused_tokens
        assert usage.fed_tokens <= 2 * read, usage

    def do_edit(self) -> None:
        if not self.told:
            with pytest.raises(SettingsError):
                self.chat.edit(0, "x")
            return
        turn = self.random.randrange(-len(self.told), len(self.told))
        text = self.random.choice([self.text(), self.told[turn][1] + "x", self.text(12)])
        self.done[-1] += f"({turn}, {text!r})"
        self.chat.edit(turn, text)
        self.told[turn] = (self.told[turn][0], text)

    def do_undo(self) -> None:
        if not self.told:
            with pytest.raises(SettingsError):
                self.chat.undo()
            return
        assert self.chat.undo() == self.told[-2][1]
        del self.told[-2:]

    def do_pin(self) -> None:
        text = self.text(2).strip() or "p"
        self.done[-1] += f"({text!r})"
        with suppress(CapacityError):
            self.chat.pin(text)
            self.pins.append(text)

    def do_unpin(self) -> None:
        if self.pins:
            text = self.random.choice(self.pins)
            self.chat.unpin(text)
            self.pins.remove(text)

    def do_system(self) -> None:
        self.system = self.random.choice([None, "", "s", "t", "You are."])
        if self.pins:
            self.system = None
        self.done[-1] += f"({self.system!r})"
        self.chat.system = self.system

    def do_purge(self) -> None:
        self.chat._conversation.cache.purge()

    def do_reset(self) -> None:
        self.chat.reset()
        self.told.clear()

    def do_fork(self) -> None:
        old, self.chat = self.chat, self.chat.fork()
        if old.history:
            old.undo()
        self.tell(old, "something else", "entirely different")
        old.close()

    def do_load(self) -> None:
        self.chat.save(self.file)
        self.chat.close()
        self.chat = Chat.load(self.bundle, self.file, verify=False)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_ten_thousand_operations_agree_with_a_list(
    number: int,
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    tell: Callable[..., str],
    prepare: Callable[[Chat, str], None],
    check_cache: Callable[..., None],
    tmp_path: Path,
) -> None:
    for seed in range(number, SEQUENCES, len(POLICIES)):
        capacity = 64 + seed % 4 * 16
        chat = open_chat(tiny_bundle, capacity, **POLICIES[number])
        player = Player(chat, tiny_bundle, seed, tmp_path / "session", tell, prepare)
        try:
            for step in range(LENGTH):
                player.play()
                if step % CHECK_EVERY == 0:
                    check_cache(player.chat._conversation, tiny_bundle)
        except BaseException:
            print(f"policy {POLICIES[number]}, capacity {capacity}, seed {seed}:")
            print("\n".join(player.done))
            raise
        player.chat.close()
