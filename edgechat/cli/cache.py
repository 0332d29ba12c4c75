"""``edgechat cache``: what a saved conversation's cache does with each token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edgechat.bundle import load_bundle
from edgechat.cache_map import map_session, total_counts
from edgechat.cli.cache_view import cache_page, print_cache
from edgechat.errors import SettingsError
from edgechat.paths import beside


def cache(
    bundle: Annotated[Path, typer.Argument(help="The bundle the conversation was held with.")],
    session: Annotated[
        Path, typer.Argument(help="A file that edgechat run --session, /save or Chat.save wrote.")
    ],
    page: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page to this file instead; it needs no other file."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing page.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: the turns, text by state.")
    ] = False,
) -> None:
    """Show a conversation, coloured by what each token is to the cache now.

    A token is a sink, pinned, key, recent, recalled, archived, forgotten or unread; the legend
    says what that means. The model is not loaded. In a conversation, `/cache` shows the same.

    Example: `edgechat cache SmolLM2-135M-Instruct-int8 ada.session --html ada.html`
    """
    if page is not None and as_json:
        raise SettingsError("--html and --json contradict each other; give one.")
    if page is not None and page.exists() and not overwrite:
        raise SettingsError(f"{page} exists; give --overwrite to replace it.")
    turns = map_session(load_bundle(bundle), session)
    if page is not None:
        _write(page, cache_page(f"edgechat cache {session.name}", turns))
        typer.echo(f"wrote {page}", err=True)
    elif as_json:
        listed = [
            {
                "role": turn.role,
                "pieces": [{"text": text, "state": state} for text, state in turn.pieces],
            }
            for turn in turns
        ]
        data = {"counts": total_counts(turns), "turns": listed}
        typer.echo(json.dumps(data, ensure_ascii=False))
    else:
        print_cache(Console(highlight=False), turns)


def _write(path: Path, text: str) -> None:
    try:
        with beside(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"the page cannot be written to {path} ({error.strerror}); choose another file."
        ) from None
