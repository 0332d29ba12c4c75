"""The interactive conversation in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from edgechat.chat import Chat
from edgechat.cli.cache_view import print_cache
from edgechat.cli.session import count_turns, save_as
from edgechat.cli.signals import Signals
from edgechat.errors import EdgechatError, SettingsError
from edgechat.paths import cache_folder
from edgechat.runtime.telemetry import Sampler, Summary

HELP = '''Type a message and press Enter. Several lines: begin and end with """.
/history       the turns so far, numbered
/edit N TEXT   change what turn N says; the next message takes it into account
/undo          take back the last message and its reply
/again         another reply to the last message
/pin TEXT      keep TEXT before the model for ever; /pins lists what is pinned
/unpin TEXT    take back a pin: its text, or its number in /pins
/cache         the conversation, coloured by what the cache does with each token
/stats         what the last reply cost
/system TEXT   change the system prompt (a large change reads the history again);
               alone: show it
/save FILE     save the conversation; edgechat run BUNDLE --session FILE goes on with it
/reset         forget the conversation, keep the system prompt
/exit          leave (so does Ctrl-D)
Ctrl-C stops a reply and keeps the conversation; pressed twice it leaves.
Lines you type are kept in the file "history" of edgechat's cache folder.'''

SHORT = 100  # characters of a turn that /history shows


def converse(chat: Chat, sampler: Sampler | None, signals: Signals) -> None:
    """Read messages until /exit or end of input, streaming each reply; with a ``sampler``, say
    after each what it cost."""
    console = Console(highlight=False)
    console.print("[dim]/help for help, /exit to leave[/dim]")
    terminal = _Terminal(chat, console, sampler, signals)
    with _line_history():
        while True:
            try:
                text = _read_message()
                if not text.startswith("/"):
                    if text.strip():
                        terminal.answer(text)
                elif not terminal.command(text):
                    return
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                console.print("\n[dim]/exit or Ctrl-D to leave[/dim]")
            except UnicodeDecodeError as error:
                console.print(f"error: that is not UTF-8 text ({error}).", style="red")
            except EdgechatError as error:
                console.print(f"error: {error}", style="red", markup=False)
                signals.leave()


class _Terminal:
    """The conversation and where it is shown."""

    def __init__(
        self, chat: Chat, console: Console, sampler: Sampler | None, signals: Signals
    ) -> None:
        self.chat, self.console, self.sampler, self.signals = chat, console, sampler, signals
        self.measured: Summary | None = None

    def command(self, text: str) -> bool:
        """Run a /command; False ends the conversation."""
        name, _, rest = text.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name not in COMMANDS:
            self.say(f"unknown command {name}; /help lists them")
        else:
            COMMANDS[name](self, rest.strip())
        return True

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    def answer(self, text: str | None) -> None:
        """Stream the reply to ``text``, or (None) another one to the last message."""
        chat, signals = self.chat, self.signals
        measuring = nullcontext() if self.sampler is None else self.sampler.span()
        with signals.held(), measuring as span:
            for piece in chat.stream_again() if text is None else chat.stream(text):
                print(piece, end="", flush=True)
                if signals.ending is not None:
                    break
        self.measured = None if span is None else span.summary()
        ends = {"cancelled": " [stopped]", "length": " [reached the longest reply, -n]"}
        reason = "" if chat.reply is None else ends.get(chat.reply.finish_reason, "")
        self.console.print(f"[dim]{escape(reason)}[/dim]")
        warn_if_cut(chat)
        if self.measured is not None:
            self.say(stats_line(chat, self.measured), "dim")

    def help(self, rest: str) -> None:
        self.say(HELP)

    def show_stats(self, rest: str) -> None:
        self.say(stats_line(self.chat, self.measured))

    def reset(self, rest: str) -> None:
        self.chat.reset()
        self.say("forgotten", "dim")

    def system(self, rest: str) -> None:
        if rest:
            self.chat.system = rest
        self.say(f"system prompt: {self.chat.system or '(the model’s own)'}")

    def history(self, rest: str) -> None:
        turns = self.chat.history
        if not turns:
            self.say("nothing was said yet", "dim")
        for number, (role, text) in enumerate(turns, 1):
            shown = " ".join(text.split())
            if len(shown) > SHORT:
                shown = shown[:SHORT] + " …"
            self.say(f"{number:>3} {'you' if role == 'user' else 'model':<6}{shown}")

    def edit(self, rest: str) -> None:
        word, _, text = rest.partition(" ")
        count = len(self.chat.history)
        if not text.strip() or not word.isdecimal():
            raise SettingsError("/edit takes the number of a turn in /history and its new text.")
        if not 1 <= int(word) <= count:
            raise SettingsError(f"there is no turn {word}: /history shows {count}.")
        self.chat.edit(int(word) - 1, text.strip())
        hint = "; /again answers it anew" if int(word) == count - 1 else ""
        self.say(f"turn {word} is changed{hint}", "dim")

    def undo(self, rest: str) -> None:
        self.say(f"taken back: {self.chat.undo()}", "dim")

    def again(self, rest: str) -> None:
        self.answer(None)

    def pin(self, rest: str) -> None:
        if not rest:
            raise SettingsError("/pin takes the text to keep.")
        self.chat.pin(rest)
        self.say("pinned", "dim")

    def unpin(self, rest: str) -> None:
        pins = self.chat.pins
        if rest not in pins and rest.isdecimal() and 1 <= int(rest) <= len(pins):
            rest = pins[int(rest) - 1]
        self.chat.unpin(rest)
        self.say(f"no longer pinned: {rest}", "dim")

    def pins(self, rest: str) -> None:
        if not self.chat.pins:
            self.say("nothing is pinned", "dim")
        for number, text in enumerate(self.chat.pins, 1):
            self.say(f"{number:>3} {text}")

    def cache(self, rest: str) -> None:
        print_cache(self.console, self.chat.cache_map())

    def save(self, rest: str) -> None:
        if not rest:
            raise SettingsError("/save takes the name of a file.")
        path = Path(rest).expanduser()
        save_as(self.chat, path)
        self.say(f"saved {path} ({count_turns(self.chat)})", "dim")


COMMANDS: dict[str, Callable[[_Terminal, str], None]] = {
    "/help": _Terminal.help,
    "/stats": _Terminal.show_stats,
    "/reset": _Terminal.reset,
    "/system": _Terminal.system,
    "/history": _Terminal.history,
    "/edit": _Terminal.edit,
    "/undo": _Terminal.undo,
    "/again": _Terminal.again,
    "/pin": _Terminal.pin,
    "/unpin": _Terminal.unpin,
    "/pins": _Terminal.pins,
    "/cache": _Terminal.cache,
    "/save": _Terminal.save,
}


def stats_line(chat: Chat, measured: Summary | None = None) -> str:
    """One line of usage for the last reply, and what the device measured during it."""
    usage = chat.usage
    if usage is None:
        return "nothing was said yet"
    used, capacity = chat.cache_used
    return (
        f"[fed {usage.fed_tokens} · reused {usage.reused_tokens} · evicted {usage.evicted_tokens}"
        f" · recalled {usage.recalled_tokens}"
        f" · first token {usage.first_token_seconds * 1e3:.0f} ms"
        f" · {usage.reply_tokens} tokens at {usage.tokens_per_second:.0f} tok/s"
        f" · cache {used}/{capacity}{_measured(measured)}]"
    )


def _measured(summary: Summary | None) -> str:
    """Such as " · 6.1 W · 52 °C": as far as it was measured."""
    if summary is None:
        return ""
    parts = [
        *([] if summary.watts is None else [f"{summary.watts:.1f} W"]),
        *([] if summary.celsius_most is None else [f"{summary.celsius_most:.0f} °C"]),
        *([f"throttled: {', '.join(summary.throttled)}"] if summary.throttled else []),
    ]
    return "".join(f" · {part}" for part in parts)


def warn_if_cut(chat: Chat) -> None:
    """Say on stderr what of the conversation is gone: a message longer than the cache, or what a
    full disk could not keep."""
    usage, capacity = chat.usage, chat.cache_used[1]
    if usage is not None and usage.fed_tokens > capacity:
        print(
            f"note: {usage.fed_tokens:,} new tokens are more than the cache holds "
            f"({capacity:,}); the model answered without the first ones (see --window).",
            file=sys.stderr,
        )
    if usage is not None and usage.lost_tokens:
        print(
            f"note: the archive's disk is full, so {usage.lost_tokens:,} tokens were forgotten for "
            "good; free some space or choose another --archive-folder.",
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
