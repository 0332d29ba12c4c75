"""``edgechat run``: talk to a bundle, or let a script talk to it."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.cli.build import prepare
from edgechat.cli.interactive import converse, stats_line, warn_if_cut
from edgechat.cli.options import AllowFallback
from edgechat.cli.session import (
    check_resumable,
    check_session_path,
    count_turns,
    kept,
    tell,
)
from edgechat.cli.signals import Signals
from edgechat.errors import SettingsError
from edgechat.runtime.telemetry import Sampler
from edgechat.settings import DEFAULT_PROFILE, load_profile


def run(
    bundle: Annotated[Path, typer.Argument(help="A bundle folder made by edgechat export.")],
    system: Annotated[
        str | None, typer.Option("-s", "--system", help="System prompt: who the model is.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt", help="Say this and exit. Repeat it for several turns of one conversation."
        ),
    ] = None,
    session: Annotated[
        Path | None,
        typer.Option(
            help="Keep the conversation in this file: resumed when it exists, saved when you leave."
        ),
    ] = None,
    temp: Annotated[
        float | None, typer.Option(help="Temperature; 0 always takes the likeliest token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Only the k likeliest tokens; 0 = off.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Only the likeliest tokens up to this probability; 1 = off."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Only tokens at least this fraction as likely as the best; 0 = off."),
    ] = None,
    repeat_penalty: Annotated[
        float | None, typer.Option(help="Makes recent tokens less likely; 1 = off.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("-n", "--max-tokens", help="Longest reply, in tokens.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="A profile or .yaml file, or several joined by commas, of which later ones win; "
            "edgechat profiles lists them.",
            show_default=DEFAULT_PROFILE,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="What stays in the KV cache. key: the first tokens, the newest, and old ones that "
            "mattered. window: only the first and the newest. full: everything, and the "
            "conversation ends when the cache is full."
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Tokens kept in the KV cache besides the sinks.")
    ] = None,
    sinks: Annotated[int | None, typer.Option(help="First tokens always kept.")] = None,
    recall_blocks: Annotated[
        int | None,
        typer.Option(
            help="Passages (of up to 32 tokens) that left the cache and are brought back for a "
            "question; 0 = off."
        ),
    ] = None,
    archive_folder: Annotated[
        Path | None,
        typer.Option(
            help="Where what leaves the cache is kept on disk while the program runs. Default: "
            "the system's temporary folder."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads. Default: usable cores.")] = None,
    allow_fallback: AllowFallback = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a reply instead of text.")
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Tell after each reply what it cost (on stderr), with power and temperature where "
            "the machine measures them.",
        ),
    ] = False,
) -> None:
    """Hold a conversation. Speed and memory stay flat however long it goes.

    With no --prompt and a terminal it is interactive (type /help there). Without a terminal the
    whole standard input is one message: `echo "Name three rivers." | edgechat run BUNDLE`

    Go on tomorrow: `edgechat run BUNDLE --session ada.session`, and the same again.
    """
    if session is not None:
        check_session_path(session)
    loaded = load_bundle(bundle)
    if loaded.manifest.graph.dialect.startswith("tensorrt"):
        prepare(loaded)
    sampling = {
        "temperature": temp,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": seed,
    }
    if session is not None and session.exists():
        given = {
            "--profile": profile,
            "--policy": policy,
            "--window": window,
            "--sinks": sinks,
            "--system": system,
            "--recall-blocks": recall_blocks,
        }
        check_resumable(session, given)
        chat = _resume(
            bundle, session, sampling, archive_folder, threads, max_tokens, allow_fallback
        )
    else:
        names = DEFAULT_PROFILE if profile is None else profile
        settings = load_profile(names).override(**sampling)
        _note_kv(bundle, names, settings.kv)
        chat = Chat.open(
            bundle,
            names,
            system,
            window=window,
            sinks=sinks,
            policy=policy,
            recall_blocks=recall_blocks,
            archive_folder=archive_folder,
            threads=threads,
            max_tokens=max_tokens,
            allow_fallback=allow_fallback,
            sampling=settings.sampling,
        )
    measuring = Sampler() if stats else nullcontext()
    with chat, measuring as sampler, Signals(chat) as signals, kept(chat, session, signals):
        if prompt is None and sys.stdin is not None and sys.stdin.isatty():
            converse(chat, sampler, signals)
            return
        for text in prompt if prompt is not None else [_read_stdin()]:
            with signals.held():
                _answer(chat, text, as_json, sampler, signals)
            if chat.reply is not None and chat.reply.finish_reason == "cancelled":
                raise typer.Exit(130)


def _resume(
    bundle: Path,
    session: Path,
    sampling: dict[str, int | float | None],
    archive_folder: Path | None,
    threads: int | None,
    max_tokens: int | None,
    allow_fallback: bool,
) -> Chat:
    chat = Chat.load(
        bundle,
        session,
        archive_folder=archive_folder,
        threads=threads,
        max_tokens=max_tokens,
        allow_fallback=allow_fallback,
        sampling={name: value for name, value in sampling.items() if value is not None},
    )
    tell(f"resumed {session} ({count_turns(chat)})")
    return chat


def _note_kv(bundle: Path, profile: str, kv: str | None) -> None:
    """The KV precision is decided at export; a profile can only ask for it."""
    found = load_bundle(bundle).manifest.kv_dtype.replace("float32", "fp32")
    if kv not in (None, found):
        tell(
            f"profile {profile} asks for an {kv} KV cache, but this bundle has an {found} one; "
            f"export it again with --profile {profile} (or --kv {kv})."
        )


def _read_stdin() -> str:
    if sys.stdin is None:
        raise SettingsError("there is no standard input; give --prompt.")
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"standard input is not UTF-8 text ({error}).") from None


def _answer(
    chat: Chat, text: str, as_json: bool, sampler: Sampler | None, signals: Signals
) -> None:
    with nullcontext() if sampler is None else sampler.span() as span:
        for piece in chat.stream(text):
            if not as_json:
                print(piece, end="", flush=True)
            if signals.ending is not None:
                break
    assert chat.reply is not None
    measured = None if span is None else span.summary()
    if as_json:
        data = dataclasses.asdict(chat.reply)
        if measured is not None:
            data["device"] = dataclasses.asdict(measured)
        print(json.dumps(data, ensure_ascii=False), flush=True)
    else:
        print(flush=True)
    warn_if_cut(chat)
    if measured is not None:
        print(stats_line(chat, measured), file=sys.stderr, flush=True)
