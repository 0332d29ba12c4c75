"""A saved conversation goes on as if nothing had happened, or says why it cannot."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.errors import SessionError
from edgechat.runtime.sampling import Sampler, SamplingSettings
from edgechat.runtime.session_file import is_session, load_state
from edgechat.warm_up import warm_up

Tell = Callable[..., str]
SAMPLED = SamplingSettings(temperature=3.0, top_k=0, top_p=1, min_p=0, seed=11)


def go_on(chat: Chat, sampling: SamplingSettings | None = None) -> list[int]:
    """The ids of the next 64 tokens."""
    if sampling is not None:
        chat._sampler = Sampler(sampling, chat._codec.size)
    chat._codec.eos = frozenset()  # the tiny model says it at random
    chat._conversation.codec.eos = frozenset()
    chat.say("and now?", max_tokens=64)
    ids = chat._conversation.turns[-1].ids
    assert ids is not None and len(ids) == 64
    return ids


def same(one: Chat, other: Chat) -> None:
    """Both are in one state, to the last bit."""
    a, b = one._conversation, other._conversation
    assert one.history == other.history and one.pins == other.pins and one.system == other.system
    assert (a.transcript.ids == b.transcript.ids).all()
    assert a.cache.slots.length == b.cache.slots.length
    length = a.cache.slots.length
    assert (a.cache.engine.read(0, 0, length) == b.cache.engine.read(0, 0, length)).all()
    for name, column in a.cache.slots.copy(0, length).items():
        assert (getattr(b.cache.slots, name) == column).all(), name
    if a.cache.memory is not None and b.cache.memory is not None:
        for name, column in a.cache.memory.archive.table().items():
            assert (column == b.cache.memory.archive.table()[name]).all(), name
        for record, copy in zip(
            a.cache.memory.archive.records(), b.cache.memory.archive.records(), strict=True
        ):
            assert (record == copy).all()


@pytest.mark.parametrize("turns", [0, 1, 8])
@pytest.mark.parametrize("kv", ["float32", "int8"])
@pytest.mark.parametrize("policy", ["key", "window", "full", "forgetful"])
def test_the_next_64_tokens_are_the_same(
    policy: str,
    kv: str,
    turns: int,
    tiny_bundle: Path,
    tiny_int8_cache: Path,
    open_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Callable[..., None],
    tmp_path: Path,
) -> None:
    bundle = tiny_int8_cache if kv == "int8" else tiny_bundle
    given: dict[str, Any] = {"policy": policy, "recall_blocks": 2}
    if policy == "forgetful":
        given = {"policy": "window", "recall_blocks": 0}
    chat = open_chat(bundle, 250 if policy == "full" else 112, "s", **given)
    for number in range(min(turns, 2) if policy == "full" else turns):
        tell(chat, f"question {number}", f"the answer is {number}")
    chat._sampler = Sampler(SamplingSettings(temperature=0, repeat_penalty=1), chat._codec.size)
    c = chat._conversation
    if turns == 8 and policy not in ("full", "forgetful"):
        assert c.cache.evicted and c.cache.slots.recalled.any()
    chat.save(tmp_path / "s")
    loaded = Chat.load(bundle, tmp_path / "s")
    same(chat, loaded)
    check_cache(loaded._conversation, bundle)
    expected = go_on(chat)
    assert go_on(loaded) == expected
    same(chat, loaded)
    loaded.close()


@pytest.mark.parametrize("way", ["load", "fork"])
def test_seeded_sampling_goes_on(
    way: str, tiny_bundle: Path, open_chat: Callable[..., Chat], tmp_path: Path
) -> None:
    chat = open_chat(tiny_bundle, 112, sampling=SAMPLED)
    chat.say("hello", max_tokens=20)
    chat.save(tmp_path / "s")
    other = chat.fork() if way == "fork" else Chat.load(tiny_bundle, tmp_path / "s")
    fresh = Chat.load(tiny_bundle, tmp_path / "s", sampling=SAMPLED)
    expected = go_on(chat)
    assert go_on(other) == expected
    assert go_on(fresh) != expected
    other.close()
    fresh.close()


def test_a_pending_edit_pins_and_an_undo_are_saved(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, tmp_path: Path
) -> None:
    chat = open_chat(tiny_bundle, 112)
    for number in range(6):
        tell(chat, f"question {number}", "yes")
    chat.pin("a pin")
    chat.edit(1, "no")
    chat.undo()
    chat._sampler = Sampler(SamplingSettings(temperature=0, repeat_penalty=1), chat._codec.size)
    chat.save(tmp_path / "s")
    loaded = Chat.load(tiny_bundle, tmp_path / "s")
    assert go_on(loaded) == go_on(chat)
    same(chat, loaded)
    loaded.close()


def test_a_fork_shares_nothing_that_changes(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, tmp_path: Path
) -> None:
    chat = open_chat(tiny_bundle, 112)
    for number in range(8):
        tell(chat, f"question {number}", "an answer")
    chat.pin("a pin")
    chat.save(tmp_path / "s")
    fork = chat.fork()
    for number in range(6):
        tell(chat, f"other {number}", "something else")
    chat.edit(0, "changed")
    chat.pins.append("no")
    chat.undo()
    chat._conversation.turns[0].ids = [1]
    loaded = Chat.load(tiny_bundle, tmp_path / "s")
    same(fork, loaded)
    state = fork._state()
    before = (fork.history, fork._conversation.transcript.ids.copy())
    chat.close()
    for one in (fork, loaded):
        tell(one, "question", "an answer")
    same(fork, loaded)
    assert before[0] == fork.history[:-2] and state.facts["pins"] == ["a pin"]
    fork.close()
    loaded.close()


@pytest.fixture
def saved(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, tmp_path: Path
) -> tuple[Path, str]:
    chat = open_chat(tiny_bundle, 80)
    for number in range(5):
        tell(chat, f"question {number}", "an answer")
    chat.save(tmp_path / "s")
    return tmp_path / "s", load_bundle(tiny_bundle).identity


def test_any_flipped_bit_is_detected(saved: tuple[Path, str]) -> None:
    path, identity = saved
    data = path.read_bytes()
    header = int.from_bytes(data[:8], "little")
    choose = random.Random(0)
    places = {*range(8), len(data) - 1, len(data) - 32, 8 + header - 1, 8 + header}
    places |= {choose.randrange(8, 8 + header) for _ in range(100)}
    places |= {choose.randrange(8 + header, len(data)) for _ in range(100)}
    places |= {choose.randrange(len(data) - 32, len(data)) for _ in range(20)}
    load_state(path, identity)
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(SessionError):
            load_state(path, identity)


def test_files_that_are_no_session_are_refused(
    saved: tuple[Path, str], tiny_bundle: Path, other_bundle: Path
) -> None:
    path, _ = saved
    data = path.read_bytes()
    assert is_session(path)
    with pytest.raises(SessionError, match="belongs to another bundle"):
        Chat.load(other_bundle, path)
    for size in (0, 1, 8, 31, 32, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(SessionError, match="damaged or no session"):
            Chat.load(tiny_bundle, path)
    path.write_bytes(data + b"x")
    with pytest.raises(SessionError, match="damaged or no session"):
        Chat.load(tiny_bundle, path)
    path.write_bytes(b"")
    assert not is_session(path)
    with pytest.raises(SessionError, match="cannot be read"):
        Chat.load(tiny_bundle, path.parent / "none")
    with pytest.raises(SessionError, match="cannot be read"):
        Chat.load(tiny_bundle, path.parent)
    assert not is_session(path.parent)


def test_safetensors_reads_what_was_saved(saved: tuple[Path, str]) -> None:
    from safetensors.numpy import load_file

    path, identity = saved
    tensors, arrays = load_file(path), load_state(path, identity).arrays
    assert arrays.keys() == tensors.keys() - {"archive.records", "checksum"}
    for name, array in arrays.items():
        assert array.dtype == tensors[name].dtype and (array == tensors[name]).all()


def test_a_place_that_cannot_be_written_is_refused(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tell: Tell, tmp_path: Path
) -> None:
    chat = open_chat(tiny_bundle, 80)
    tell(chat, "x")
    for path in (tmp_path / "none" / "s", tmp_path):
        with pytest.raises(SessionError, match="could not be saved"):
            chat.save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_keeps_the_old_file(
    saved: tuple[Path, str],
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, _ = saved
    before = path.read_bytes()
    chat = Chat.load(tiny_bundle, path)

    def fail(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SessionError, match="No space left"):
        chat.save(path)
    chat.close()
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1


SAVER = """
import sys
from edgechat.chat import Chat
chat = Chat.load(sys.argv[1], sys.argv[2], verify=False)
print("ready", flush=True)
while True:
    chat._conversation.answered += 1
    chat.save(sys.argv[2])
"""


@pytest.mark.slow
def test_kill_9_during_save_leaves_a_whole_file(saved: tuple[Path, str], tiny_bundle: Path) -> None:
    path, identity = saved
    choose, last = random.Random(0), load_state(path, identity).facts["answered"]
    for _ in range(6):
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tiny_bundle), str(path)], stdout=subprocess.PIPE
        )
        assert saver.stdout is not None
        assert saver.stdout.readline() == b"ready\n"
        time.sleep(0.05 + choose.random() * 0.1)
        saver.send_signal(signal.SIGKILL)
        saver.wait()
        saver.stdout.close()
        answered = load_state(path, identity).facts["answered"]
        assert answered > last
        last = answered
    Chat.load(tiny_bundle, path).save(path)
    assert list(path.parent.iterdir()) == [path]  # what the killed ones left was tidied away


@pytest.mark.parametrize("system", ["You guard a castle.", None])
@pytest.mark.parametrize("policy", ["key", "full"])
def test_a_second_start_reads_the_system_prompt_from_disk(
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    system: str | None,
    policy: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = load_bundle(tiny_bundle)
    chats = [open_chat(tiny_bundle, 128, system, policy=policy) for _ in range(4)]
    assert not warm_up(chats[0]._conversation, loaded)
    (file,) = tmp_path.rglob("*.safetensors")
    assert warm_up(chats[1]._conversation, loaded)
    same(chats[0], chats[1])
    file.write_bytes(file.read_bytes()[:-1])
    assert not warm_up(chats[2]._conversation, loaded)
    assert warm_up(chats[3]._conversation, loaded)
    cold = open_chat(tiny_bundle, 128, system, policy=policy)
    tell(cold, "hello", "ok")
    for chat in chats:
        tell(chat, "hello", "ok")
        assert (chat._conversation.transcript.ids == cold._conversation.transcript.ids).all()
        assert chat.usage is not None and cold.usage is not None
        assert chat.usage.fed_tokens < cold.usage.fed_tokens
        check_cache(chat._conversation, tiny_bundle)
        logits, expected = chat._conversation.cache.logits, cold._conversation.cache.logits
        assert logits is not None and expected is not None
        assert np.abs(logits - expected).max() < 1e-3


def test_warming_up_keeps_what_is_not_of_the_prompt(
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A file that is whole but of an older edgechat, and a read-only disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = load_bundle(tiny_bundle)
    chat = open_chat(tiny_bundle, 128, "x")
    assert not warm_up(chat._conversation, loaded)
    monkeypatch.setattr(
        "edgechat.warm_up.load_state", lambda *_: _without(load_state(*_), "starts")
    )
    other = open_chat(tiny_bundle, 128, "x")
    assert not warm_up(other._conversation, loaded)
    same(chat, other)
    shutil.rmtree(tmp_path)
    tmp_path.write_text("no folder")
    third = open_chat(tiny_bundle, 128, "x")
    assert not warm_up(third._conversation, loaded)
    same(chat, third)


def _without(state: Any, fact: str) -> Any:
    del state.facts[fact]
    return state
