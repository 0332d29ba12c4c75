"""``edgechat run``: talk to a bundle, or let a script talk to it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from edgechat.chat import Chat
from edgechat.cli.interactive import cancel_on_interrupt, converse, stats_line, warn_if_cut
from edgechat.errors import SettingsError
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
        str, typer.Option(help="chat, document, npc, or a path to a .yaml file.")
    ] = DEFAULT_PROFILE,
    policy: Annotated[
        str | None,
        typer.Option(
            help="window: bounded, goes on for ever. full: keeps everything, ends when full."
        ),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Recent tokens kept in the KV cache.")] = None,
    sinks: Annotated[int | None, typer.Option(help="First tokens always kept.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads. Default: usable cores.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a reply instead of text.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Tell after each reply what it cost (on stderr).")
    ] = False,
) -> None:
    """Hold a conversation. Speed and memory stay flat however long it goes.

    With no --prompt and a terminal it is interactive (type /help there). Without a terminal the
    whole standard input is one message: `echo "Name three rivers." | edgechat run BUNDLE`
    """
    settings = load_profile(profile).override(
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
    )
    with Chat.open(
        bundle,
        profile,
        system,
        window=window,
        sinks=sinks,
        policy=policy,
        threads=threads,
        max_tokens=max_tokens,
        sampling=settings.sampling,
    ) as chat:
        if prompt is None and sys.stdin is not None and sys.stdin.isatty():
            converse(chat, stats)
            return
        for text in prompt if prompt is not None else [_read_stdin()]:
            with cancel_on_interrupt(chat):
                _answer(chat, text, as_json, stats)
            if chat.reply is not None and chat.reply.finish_reason == "cancelled":
                raise typer.Exit(130)


def _read_stdin() -> str:
    if sys.stdin is None:
        raise SettingsError("there is no standard input; give --prompt.")
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"standard input is not UTF-8 text ({error}).") from None


def _answer(chat: Chat, text: str, as_json: bool, stats: bool) -> None:
    for piece in chat.stream(text):
        if not as_json:
            print(piece, end="", flush=True)
    assert chat.reply is not None
    if as_json:
        print(json.dumps(dataclasses.asdict(chat.reply), ensure_ascii=False), flush=True)
    else:
        print(flush=True)
    warn_if_cut(chat)
    if stats:
        print(stats_line(chat), file=sys.stderr, flush=True)
