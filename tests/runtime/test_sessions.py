"""A saved conversation goes on as if nothing had happened, or says why it cannot."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import stat
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
from edgechat.errors import SessionError, SettingsError
from edgechat.runtime.sampling import Sampler, SamplingSettings
from edgechat.runtime.session_file import is_session, load_state
from edgechat.runtime.state import restore
from edgechat.warm_up import KEPT, warm_up

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


def craft(path: Path, header: bytes, data: bytes = b"", size: int | None = None) -> None:
    """A file with a right checksum whatever it says."""
    whole = (len(header) if size is None else size).to_bytes(8, "little") + header + data
    path.write_bytes(whole + hashlib.blake2b(whole, digest_size=32).digest())


def taken_apart(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a session, and the data without the checksum."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), data[start:-32]


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"{}", 1 << 29),
        (b"{}", (1 << 64) - 1),
        (b"[]", None),
        (b"null", None),
        (b"[" * 200_000, None),
        (b'{"__metadata__": 5}', None),
        (b'{"__metadata__": {"format": 5}}', None),
        (b"\xff\xfe", None),
    ],
)
def test_odd_headers_are_refused(saved: tuple[Path, str], header: bytes, size: int | None) -> None:
    path, identity = saved
    craft(path, header, size=size)
    assert not is_session(path)
    with pytest.raises(SessionError):
        load_state(path, identity)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("kv", {"shape": [1 << 40]}),
        ("kv", {"shape": [-1, -1]}),
        ("kv", {"shape": [1 << 62, 1 << 62, 0]}),
        ("kv", {"shape": ["x"]}),
        ("kv", {"shape": 7}),
        ("kv", {"dtype": "F8"}),
        ("kv", {"dtype": "F64"}),
        ("kv", {"data_offsets": [0]}),
        ("kv", {"data_offsets": []}),
        ("transcript", {"data_offsets": [1 << 50, (1 << 50) + 8], "shape": [1]}),
        ("transcript", {"data_offsets": [-8, 0], "shape": [1]}),
        ("archive.records", {"shape": []}),
        ("archive.records", {"shape": [1 << 60, 0], "data_offsets": [0, 0]}),
        ("__metadata__", {"facts": "[]"}),
        ("__metadata__", {"facts": "[" * 200_000}),
        ("__metadata__", {"facts": 5}),
    ],
)
def test_odd_tensors_are_refused(
    saved: tuple[Path, str], tiny_bundle: Path, name: str, changes: dict[str, Any]
) -> None:
    path, identity = saved
    header, data = taken_apart(path)
    header[name].update(changes)
    craft(path, json.dumps(header).encode(), data)
    with pytest.raises(SessionError):
        load_state(path, identity)
    with pytest.raises(SessionError):
        Chat.load(tiny_bundle, path)


BAD_FACTS: list[tuple[str, Any]] = [
    ("system", 5),
    ("system", "\ud800"),
    ("pins", "abc"),
    ("pins", [5]),
    ("summary", None),
    ("summarised", 99),
    ("answered", -1),
    ("answered", True),
    ("clock", 5),
    ("clock", "yesterday"),
    ("fed", 3),
    ("fed", -1),
    ("evicted", 1.5),
    ("pinned", [[1]]),
    ("pinned", [[-1, 4]]),
    ("starts", ["x"]),
    ("starts", 5),
    ("turns", {}),
    ("turns", [5, 6]),
    ("turns", [{"role": "user", "content": "x", "ids": None}]),
    ("turns", [{"role": r, "content": "x", "ids": None} for r in ("assistant", "user")]),
    ("turns", [{"role": r, "content": 5, "ids": None} for r in ("user", "assistant")]),
    ("turns", [{"role": r, "content": "x", "ids": [-1]} for r in ("user", "assistant")]),
    ("turns", [{"role": r, "content": "x", "ids": [1 << 40]} for r in ("user", "assistant")]),
    ("turns", [{"role": r, "content": "x", "ids": "1"} for r in ("user", "assistant")]),
]
BAD_ARRAYS: list[tuple[str, Callable[[Any], Any]]] = [
    ("transcript", lambda a: a[:-1]),
    ("transcript", lambda a: a - 500),
    ("transcript", lambda a: a + 500),
    ("transcript", lambda a: a.astype(np.float32)),
    ("kv", lambda a: a[..., :-1]),
    ("kv", lambda a: a[:, :, :, :-1]),
    ("kv", lambda a: a.astype(np.float16)),
    ("logits", lambda a: a[:-1]),
    ("slots.index", lambda a: a - a.max() - 1),
    ("slots.index", lambda a: a + 500),
    ("slots.index", lambda a: np.tile(a, 50)),
    ("slots.used", lambda a: a - 10_000),
    ("slots.mass", lambda a: a[:-1]),
    ("slots.hidden", lambda a: a[:, :-1]),
    ("slots.pinned", lambda a: a.astype(np.int64)),
    ("archive.starts", lambda a: a - 10_000),
    ("archive.starts", lambda a: a + 10_000),
    ("archive.counts", lambda a: a + 32),
    ("archive.skips", lambda a: a - 1),
    ("archive.origins", lambda a: a - 1000),
    ("archive.vectors", lambda a: a[:, :-1]),
    ("archive.surprisal", lambda a: a[:-1]),
    ("topics.sum", lambda a: a[:-1]),
    ("topics.products", lambda a: a[:-1]),
    ("topics.basis", lambda a: a[:-1]),
    ("topics.count", lambda a: a[:1]),
]


@pytest.mark.parametrize(("name", "value"), BAD_FACTS)
def test_odd_facts_change_nothing(
    saved: tuple[Path, str],
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    name: str,
    value: Any,
) -> None:
    state = load_state(*saved)
    assert name in state.facts
    state.facts[name] = value
    chat = open_chat(tiny_bundle, 80)
    with pytest.raises((ValueError, TypeError)):
        restore(chat._conversation, state)
    same(chat, open_chat(tiny_bundle, 80))


@pytest.mark.parametrize(("name", "change"), BAD_ARRAYS)
def test_odd_arrays_change_nothing(
    saved: tuple[Path, str],
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    name: str,
    change: Callable[[Any], Any],
) -> None:
    state = load_state(*saved)
    state.arrays[name] = change(state.arrays[name])
    chat = open_chat(tiny_bundle, 80)
    with pytest.raises(ValueError, match="cannot be right"):
        restore(chat._conversation, state)
    same(chat, open_chat(tiny_bundle, 80))
    assert chat.say("x", max_tokens=3).usage.reply_tokens <= 3


def test_odd_records_and_missing_parts_change_nothing(
    saved: tuple[Path, str], tiny_bundle: Path, open_chat: Callable[..., Chat]
) -> None:
    chat = open_chat(tiny_bundle, 80)
    state = load_state(*saved)
    state.records = [record[:, :, :, :-1] for record in state.records]
    with pytest.raises(ValueError, match="records"):
        restore(chat._conversation, state)
    for name in ("slots.index", "slots.used", "kv", "transcript", "archive.starts", "topics.sum"):
        state = load_state(*saved)
        del state.arrays[name]
        with pytest.raises((KeyError, ValueError)):
            restore(chat._conversation, state)
    same(chat, open_chat(tiny_bundle, 80))


@pytest.mark.parametrize("sampler", [None, [], {}, {"bit_generator": "PCG64", "state": -1}])
def test_odd_random_numbers_are_refused(
    saved: tuple[Path, str], tiny_bundle: Path, sampler: Any
) -> None:
    path, _ = saved
    header, data = taken_apart(path)
    facts = json.loads(header["__metadata__"]["facts"])
    facts["sampler"] = sampler
    header["__metadata__"]["facts"] = json.dumps(facts)
    craft(path, json.dumps(header).encode(), data)
    with pytest.raises(SessionError):
        Chat.load(tiny_bundle, path)


def test_only_the_user_may_read_a_session(
    saved: tuple[Path, str], tiny_bundle: Path, open_chat: Callable[..., Chat]
) -> None:
    path, _ = saved
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    leftover = path.with_name(f".{path.name}.partial-{os.getpid()}")
    leftover.write_text("of a killed process of the same number")
    open_chat(tiny_bundle, 80).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_leftovers_that_cannot_be_removed_are_no_traceback(
    saved: tuple[Path, str],
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Path) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("edgechat.paths.remove_leftovers", fail)
    with pytest.raises(SessionError, match="Permission denied"):
        open_chat(tiny_bundle, 80).save(saved[0])


def test_some_of_the_sampling_may_change(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tmp_path: Path
) -> None:
    chat = open_chat(tiny_bundle, 112, sampling=SAMPLED)
    chat.say("hello", max_tokens=20)
    chat.save(tmp_path / "s")
    with Chat.load(tiny_bundle, tmp_path / "s", sampling={"top_k": 7}) as other:
        assert other.settings.sampling == dataclasses.replace(SAMPLED, top_k=7)
    with Chat.load(tiny_bundle, tmp_path / "s", sampling={}) as other:
        assert go_on(other) == go_on(chat)
    with pytest.raises(TypeError, match="top_z"):
        Chat.load(tiny_bundle, tmp_path / "s", sampling={"top_z": 7})
    with pytest.raises(SettingsError, match="temperature"):
        Chat.load(tiny_bundle, tmp_path / "s", sampling={"temperature": -1})


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


@pytest.mark.parametrize("error", [IndexError, RecursionError, MemoryError, AttributeError])
def test_a_prefill_file_that_cannot_be_read_is_made_anew(
    error: type[Exception],
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = load_bundle(tiny_bundle)
    chat, other = open_chat(tiny_bundle, 128, "x"), open_chat(tiny_bundle, 128, "x")
    assert not warm_up(chat._conversation, loaded)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("edgechat.warm_up.restore", fail)
    assert not warm_up(other._conversation, loaded)
    same(chat, other)


def test_the_prompts_used_last_stay_on_disk(
    tiny_bundle: Path,
    open_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = load_bundle(tiny_bundle)
    for number in range(KEPT + 3):
        for name in (str(number), "0"):
            warm_up(open_chat(tiny_bundle, 128, f"prompt {name}")._conversation, loaded)
            time.sleep(0.01)
    files = list(tmp_path.rglob("*.safetensors"))
    assert len(files) == KEPT == len(list(files[0].parent.iterdir()))
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert warm_up(open_chat(tiny_bundle, 128, "prompt 0")._conversation, loaded)
    assert not warm_up(open_chat(tiny_bundle, 128, "prompt 1")._conversation, loaded)


def _without(state: Any, fact: str) -> Any:
    del state.facts[fact]
    return state


def test_what_is_no_file_is_neither_read_nor_replaced(
    tiny_bundle: Path, open_chat: Callable[..., Chat], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SessionError, match="is no file"):
        open_chat(tiny_bundle).save(pipe)
    with pytest.raises(SessionError, match="is no file"):
        Chat.load(tiny_bundle, pipe)
    assert pipe.is_fifo()
