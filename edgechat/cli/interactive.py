"""The interactive conversation in a terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console

from edgechat.chat import Chat
from edgechat.errors import EdgechatError
from edgechat.paths import cache_folder

HELP = '''Type a message and press Enter. Several lines: begin and end with """.
/stats         what the last reply cost
/system TEXT   change the system prompt (the history is read again); alone: show it
/reset         forget the conversation, keep the system prompt
/exit          leave (so does Ctrl-D)
Ctrl-C stops a reply and keeps the conversation; pressed twice it leaves.
Lines you type are kept in the file "history" of edgechat's cache folder.'''


def converse(chat: Chat, stats: bool) -> None:
    """Read messages until /exit or end of input, streaming each reply."""
    console = Console(highlight=False)
    console.print("[dim]/help for help, /exit to leave[/dim]")
    with _line_history():
        while True:
            try:
                text = _read_message()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                console.print("\n[dim]/exit or Ctrl-D to leave[/dim]")
                continue
            if text.startswith("/"):
                if not _command(chat, text, console):
                    return
            elif text.strip():
                _reply(chat, text, console, stats)


@contextmanager
def cancel_on_interrupt(chat: Chat) -> Iterator[None]:
    """Ctrl-C ends the reply and keeps the conversation; a second one ends the program."""

    def handle(number: int, frame: FrameType | None) -> None:
        chat.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stats_line(chat: Chat) -> str:
    """One line of usage for the last reply."""
    usage = chat.usage
    if usage is None:
        return "nothing was said yet"
    used, capacity = chat.cache_used
    return (
        f"[fed {usage.fed_tokens} · reused {usage.reused_tokens} · evicted {usage.evicted_tokens}"
        f" · recalled {usage.recalled_tokens}"
        f" · first token {usage.first_token_seconds * 1e3:.0f} ms"
        f" · {usage.reply_tokens} tokens at {usage.tokens_per_second:.0f} tok/s"
        f" · cache {used}/{capacity}]"
    )


def warn_if_cut(chat: Chat) -> None:
    """Say on stderr when a message was longer than the cache, so that its beginning is gone."""
    usage, capacity = chat.usage, chat.cache_used[1]
    if usage is not None and usage.fed_tokens > capacity:
        print(
            f"note: {usage.fed_tokens:,} new tokens are more than the cache holds "
            f"({capacity:,}); the model answered without the first ones (see --window).",
            file=sys.stderr,
        )


def _read_message() -> str:
    line = input("> ")
    if not line.startswith('"""'):
        return line
    lines = [line[3:]]
    while not lines[-1].rstrip().endswith('"""'):
        lines.append(input(". "))
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n")


def _command(chat: Chat, text: str, console: Console) -> bool:
    """Run a /command; False ends the conversation."""
    name, _, rest = text.partition(" ")
    if name in ("/exit", "/quit"):
        return False
    if name == "/help":
        console.print(HELP, markup=False)
    elif name == "/stats":
        console.print(stats_line(chat), markup=False, soft_wrap=True)
    elif name == "/reset":
        chat.reset()
        console.print("[dim]forgotten[/dim]")
    elif name == "/system":
        if rest.strip():
            chat.system = rest.strip()
        console.print(f"system prompt: {chat.system or '(the model’s own)'}", markup=False)
    else:
        console.print(f"unknown command {name}; /help lists them", markup=False)
    return True


def _reply(chat: Chat, text: str, console: Console, stats: bool) -> None:
    try:
        with cancel_on_interrupt(chat):
            for piece in chat.stream(text):
                print(piece, end="", flush=True)
    except EdgechatError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return
    ends = {"cancelled": " [stopped]", "length": " [reached the longest reply, -n]"}
    reason = "" if chat.reply is None else ends.get(chat.reply.finish_reason, "")
    console.print(f"[dim]{reason.replace('[', chr(92) + '[')}[/dim]")
    warn_if_cut(chat)
    if stats:
        console.print(stats_line(chat), style="dim", markup=False, soft_wrap=True)


@contextmanager
def _line_history() -> Iterator[None]:
    """Arrow keys bring back earlier messages, also those of earlier runs, where readline is."""
    try:
        import readline
    except ImportError:  # Windows: the console has its own line editing
        yield
        return
    path: Path = cache_folder() / "history"
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
