"""What the cache does with each token is told alike by a chat, by its session and on a page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edgechat import Chat
from edgechat.bundle import load_bundle
from edgechat.cache_map import STATES, MappedTurn, map_session, total_counts
from edgechat.cli.cache_view import LOOKS, cache_page

Run = Callable[..., subprocess.CompletedProcess[str]]
HOSTILE = "<script>alert('é🙂')</script> & \x1b[31m"


def text(turn: MappedTurn) -> str:
    return "".join(piece for piece, _ in turn.pieces)


def states(turn: MappedTurn) -> set[str]:
    return {state for _, state in turn.pieces}


def long_chat(bundle: Path, **options: object) -> Chat:
    chat = Chat.open(bundle, system="s" * 10, window=96, **options)  # type: ignore[arg-type]
    for number in range(4):
        chat.say(f"{number}{HOSTILE[:30]}", max_tokens=40)
    return chat


@pytest.fixture
def session(endless: Path, tmp_path: Path) -> Path:
    """A conversation of which parts were evicted, recalled and forgotten."""
    with long_chat(endless) as chat:
        chat.save(tmp_path / "a.session")
    return tmp_path / "a.session"


@pytest.mark.parametrize(
    "options",
    [{"policy": "key"}, {"policy": "window"}, {"policy": "key", "recall_blocks": 0}],
)
def test_a_session_tells_what_its_chat_tells(
    options: dict[str, object], endless: Path, tmp_path: Path
) -> None:
    with long_chat(endless, **options) as chat:
        mapped = chat.cache_map()
        chat.save(tmp_path / "a.session")
        assert [(t.role, text(t)) for t in mapped[1:]] == chat.history
    assert map_session(load_bundle(endless), tmp_path / "a.session") == mapped
    counts = total_counts(mapped)
    assert counts["recent"] and states(mapped[0]) <= {"sink", "pinned"}
    left = "forgotten" if options.get("recall_blocks") == 0 else "archived"
    assert counts[left]


def test_what_the_next_message_reads_is_unread(endless: Path) -> None:
    with Chat.open(endless, system="s") as chat:
        chat.say("one", max_tokens=5)
        chat.say("two", max_tokens=5)
        chat.edit(2, "three")
        *before, changed, reply = chat.cache_map()
        assert all("unread" not in states(turn) or turn is before[2] for turn in before)
        assert states(changed) | states(reply) == {"pinned", "unread"} | states(reply)
        assert states(reply) == {"unread"}


def test_the_command_shows_and_lists(run: Run, endless: Path, session: Path) -> None:
    turns = map_session(load_bundle(endless), session)
    data = json.loads(run("cache", endless, session, "--json").stdout)
    assert data["counts"] == total_counts(turns)
    assert [t["role"] for t in data["turns"]] == [t.role for t in turns]
    assert [[(p["text"], p["state"]) for p in t["pieces"]] for t in data["turns"]] == [
        t.pieces for t in turns
    ]
    shown = run("cache", endless, session).stdout
    assert "[pinned: " in shown and "[archived: " in shown and LOOKS["key"].meaning in shown
    assert "\x1b" not in shown


class Page(HTMLParser):
    """Collects tags and the text of the turns."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.turns: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [name for name, _ in attributes if name in ("src", "href")]
        if tag == "p":
            self.turns.append("")
        self._inside = tag == "p" or (self._inside and tag == "span")

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside or (self.turns and data.strip() and self.lasttag == "span"):
            self.turns[-1] += data


def test_a_page_says_it_all_and_needs_nothing() -> None:
    page = cache_page("a <b>", [MappedTurn("user", [(HOSTILE, s) for s in STATES])])
    parsed = Page(page)
    assert "script" not in parsed.tags and not parsed.links and "http:" not in page
    assert parsed.turns == [HOSTILE.replace("\x1b", "\ufffd") * len(STATES)]
    assert "<title>a &lt;b&gt;</title>" in page
    assert "prefers-color-scheme: dark" in page
    for state in STATES:
        assert f'class="{state}" title="{state}: ' in page


def test_a_page_is_not_overwritten_unasked(
    run: Run, endless: Path, session: Path, tmp_path: Path
) -> None:
    page = tmp_path / "a.html"
    run("cache", endless, session, "--html", page)
    first = page.read_text(encoding="utf-8")
    assert first.startswith("<!DOCTYPE html>") and "&lt;script&gt;" in first
    page.write_text("mine")
    assert "--overwrite" in run("cache", endless, session, "--html", page, code=1).stderr
    assert page.read_text() == "mine"
    run("cache", endless, session, "--html", page, "--overwrite")
    assert page.read_text(encoding="utf-8") == first
    missing = tmp_path / "no" / "a.html"
    assert "cannot be written" in run("cache", endless, session, "--html", missing, code=1).stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.session"]


def test_what_is_no_session_of_the_bundle_is_refused(
    run: Run, tiny_bundle: Path, endless: Path, session: Path
) -> None:
    for args, message in (
        ((tiny_bundle, session), "another bundle"),
        ((endless, endless / "edgechat.json"), "no session"),
        ((endless, "nowhere"), "cannot be read"),
        ((session, session), "does not exist"),
    ):
        done = run("cache", *args, code=1)
        assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_every_state_has_a_look() -> None:
    assert tuple(LOOKS) == STATES
    assert {f.name for f in fields(MappedTurn)} == {"role", "pieces", "counts"}
