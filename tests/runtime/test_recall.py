"""What comes back from the archive is what left, in its place, within its budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgechat.chat import Chat
from edgechat.runtime.topic import TopicSpace

Check = Callable[..., None]
Tell = Callable[..., str]


@pytest.mark.parametrize("policy", ["key", "window"])
@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_every_slot_is_right_after_every_turn(
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Check,
    policy: str,
    blocks: int,
) -> None:
    chat = open_chat(tiny_bundle, 128, policy=policy, recall_blocks=blocks)
    recalled = 0
    for number in range(20):
        tell(chat, f"what about {number}?", f"it is {number * number}, as I said.")
        check_cache(chat._conversation, tiny_bundle)
        assert chat.usage is not None
        recalled += chat.usage.recalled_tokens
        c = chat._conversation
        assert c.cache.memory is not None
        known = np.zeros(len(c.transcript), bool)  # nothing is forgotten
        known[c.cache.slots.index] = True
        for record in np.flatnonzero(c.cache.memory.archive.counts):
            start = int(c.cache.memory.archive.starts[record])
            known[start : start + int(c.cache.memory.archive.counts[record])] = True
        assert known.all()
    assert recalled > 0


def test_int8_caches_recall_their_codes(
    tiny_int8_cache: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check
) -> None:
    chat = open_chat(tiny_int8_cache, 128)
    recalled = 0
    for number in range(12):
        tell(chat, f"what about {number}?", f"it is {number * number}, as I said.")
        check_cache(chat._conversation, tiny_int8_cache)
        assert chat.usage is not None
        recalled += chat.usage.recalled_tokens
    assert recalled
    assert chat._conversation.cache.memory is not None
    assert chat._conversation.cache.memory.archive.dtype == np.int8


def test_the_block_that_is_asked_for_comes_back(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell
) -> None:
    chat = open_chat(tiny_bundle, 160, recall_blocks=1)
    for text in ("zzzzzz zzzzzz", "AAAA BBBB", "123 456 789", "q w e r t y", "hello", "0 0 0"):
        tell(chat, text, text)
    tell(chat, "zzzzzz zzzzzz", "yes")
    c = chat._conversation
    index = c.cache.slots.index[c.cache.slots.recalled]
    assert "zzzz" in c.codec.decode(c.transcript.ids[index].tolist())


def test_the_question_is_never_evicted_by_what_it_recalls(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check
) -> None:
    """Half of the cache is system prompt, a quarter old questions; then comes a long one."""
    for policy in ("key", "window"):
        chat = open_chat(tiny_bundle, 128, "s" * 36, policy=policy, recall_blocks=8)
        for number in range(8):
            tell(chat, f"{number}: {'x' * 27}", "y" * 30)
        tell(chat, "z" * 30, "")
        c = chat._conversation
        start, stop = c.prompt().spans[-2] or (0, 0)
        assert set(range(start, stop)) <= set(c.cache.slots.index.tolist())
        check_cache(c, tiny_bundle)


def test_recalled_tokens_compete_for_their_place(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check
) -> None:
    chat = open_chat(tiny_bundle, 128, policy="window")
    for number in range(10):
        tell(chat, f"what about {number}?", "something")
    slots = chat._conversation.cache.slots
    first = set(slots.index[slots.recalled].tolist())
    assert first
    chat._conversation.upkeep = type(chat._conversation.upkeep)(recall_blocks=0)
    for number in range(6):
        tell(chat, f"and {number}?", "something else")
        check_cache(chat._conversation, tiny_bundle)
    assert not chat._conversation.cache.slots.recalled.any()


def test_a_recalled_pinned_question_does_not_pile_up(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check
) -> None:
    chat = open_chat(tiny_bundle, 128, recall_blocks=8, pinned_questions=3)
    for _ in range(15):
        tell(chat, "the same", "again and again")
        slots = chat._conversation.cache.slots
        index = slots.index.tolist()
        assert max(index.count(i) for i in set(index)) <= 2
        check_cache(chat._conversation, tiny_bundle)


def test_purge_drops_what_was_recalled_and_makes_room(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check
) -> None:
    chat = open_chat(tiny_bundle, 128, policy="window")
    for number in range(8):
        tell(chat, f"what about {number}?", "something")
    cache = chat._conversation.cache
    assert cache.slots.recalled.any()
    cache.purge()
    assert not cache.slots.recalled.any()
    assert cache.room >= cache.engine.capacity // 4
    check_cache(chat._conversation, tiny_bundle)
    room = cache.room
    cache.purge()
    assert cache.room == room


def test_an_interval_purges_by_itself(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell
) -> None:
    chat = open_chat(tiny_bundle, 128, cache_purge_interval=3)
    purged = []
    cache = chat._conversation.cache
    chat._conversation.cache.purge = lambda: purged.append(len(chat._conversation.turns))  # type: ignore[method-assign]
    for number in range(7):
        tell(chat, f"{number}")
    assert cache.fed and purged == [6, 12]


def test_lent_puts_everything_back(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, check_cache: Check
) -> None:
    chat = open_chat(tiny_bundle, 96)
    for number in range(6):
        tell(chat, f"what about {number}?", "something")
    cache = chat._conversation.cache
    kv = cache.engine.read(0, 0, cache.slots.length)
    columns = {k: v.copy() for k, v in cache.slots.copy(0, cache.slots.length).items()}
    facts = (cache.fed, cache.evicted, list(cache.pins), list(cache.turns), cache.memory)
    with pytest.raises(KeyError), cache.lent():
        cache.feed(np.arange(3, 253))
        assert cache.evicted > facts[1]
        raise KeyError
    assert (cache.engine.read(0, 0, cache.slots.length) == kv).all()
    assert all((getattr(cache.slots, k) == v).all() for k, v in columns.items())
    assert (cache.fed, cache.evicted, cache.pins, cache.turns, cache.memory) == facts
    check_cache(chat._conversation, tiny_bundle)


def test_topics_tell_texts_apart_and_restore_exactly() -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=16) * 20
    topics = random.normal(size=(3, 16)).astype(np.float32)
    space = TopicSpace(16)
    texts = [(shared + t + random.normal(size=(400, 16)) * 0.3).astype(np.float32) for t in topics]
    for text in texts:
        space.observe(text)
    means = np.stack([text.mean(axis=0) for text in texts])
    for number in range(3):
        query = (shared + topics[number]).astype(np.float32)
        assert int(space.similarity(means, query).argmax()) == number
    other = TopicSpace(16)
    other.restore({k: v.copy() for k, v in space.table().items()})
    query: Any = means[0]
    assert (other.similarity(means, query) == space.similarity(means, query)).all()
    other.observe(texts[0])
    assert space.count != other.count
