"""``edgechat build``: TensorRT engines of a bundle, on the device or ahead of time."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from edgechat.bundle import Bundle, load_bundle
from edgechat.errors import EngineError, SettingsError
from edgechat.runtime.tensorrt.build import RTX_GPUS, Options, build_ahead
from edgechat.runtime.tensorrt.engines import (
    WORKSPACE,
    Engines,
    check_buildable,
    ensure_engines,
)

LARGEST_WORKSPACE = 1 << 20  # MiB
DRY_GPUS = ("SM86", "SM120")


def build(
    bundle: Annotated[
        Path, typer.Argument(help="A bundle folder exported with --target jetson-jp7 or -jp6.")
    ],
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build again, even where there is an engine.")
    ] = False,
    workspace: Annotated[
        int, typer.Option(help="Memory a kernel may use besides inputs and outputs, in MiB.")
    ] = WORKSPACE >> 20,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Keep nothing: build ahead of time with TensorRT-RTX, which needs no GPU "
            "(pip install 'edgechat[rtx]').",
        ),
    ] = False,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help=f"With --dry-run: {', '.join(RTX_GPUS)}. Default: SM86 and SM120."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build the TensorRT engine of a bundle on the device that will run it.

    It takes some minutes and is kept in the bundle, for this TensorRT, GPU and bundle only;
    `edgechat run` does the same when there is none. `--dry-run` lets NVIDIA's TensorRT-RTX, the
    builder for PC cards, parse and build the graphs on any x86 PC.
    """
    loaded = load_bundle(bundle)
    if gpu and not dry_run:
        raise SettingsError("--gpu goes with --dry-run; a build is for the GPU that is here.")
    if not 1 <= workspace <= LARGEST_WORKSPACE:
        raise SettingsError(f"--workspace must be 1 to {LARGEST_WORKSPACE:,} MiB, not {workspace}.")
    if dry_run:
        _dry_run(loaded, gpu or list(DRY_GPUS), as_json)
        return
    engines, seconds = prepare(loaded, workspace << 20, rebuild)
    size = engines.decoder.stat().st_size
    if as_json:
        data = {"folder": str(engines.folder), "bytes": size, "seconds": seconds}
        typer.echo(json.dumps(data))
    else:
        typer.echo(f"engine: {engines.folder} ({size / 1e6:,.0f} MB)")
        typer.echo(f"talk to it: edgechat run {bundle}")


def prepare(
    bundle: Bundle, workspace: int = WORKSPACE, rebuild: bool = False
) -> tuple[Engines, float]:
    """The engines for this machine, built with a progress bar if there are none yet, and the
    seconds that took."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    start = time.monotonic()
    with (
        _ctrl_c() as pressed,
        Progress(
            *columns,
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar,
    ):
        tasks: dict[str, Any] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done, total=total)

        def say(line: str) -> None:
            tasks.clear()
            bar.console.print(line, highlight=False, markup=False, soft_wrap=True)

        options = Options(workspace=workspace, progress=progress, cancelled=pressed)
        try:
            engines = ensure_engines(bundle, options, say, rebuild)
        except EngineError:
            if pressed():
                raise KeyboardInterrupt from None
            raise
    return engines, time.monotonic() - start


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Tells whether Ctrl-C was pressed instead of raising: TensorRT asks from threads of its own
    while the main one, which alone runs signal handlers, waits for it."""
    heard, tell = socket.socketpair()
    heard.setblocking(False)
    tell.setblocking(False)
    signals: list[int] = []

    def pressed() -> bool:
        with suppress(BlockingIOError):
            signals.extend(heard.recv(64))
        return signal.SIGINT in signals

    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    woken = signal.set_wakeup_fd(tell.fileno())
    try:
        yield pressed
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGINT, before)
        heard.close()
        tell.close()


def _dry_run(bundle: Bundle, gpus: list[str], as_json: bool) -> None:
    unknown = [name for name in gpus if name not in RTX_GPUS]
    if unknown:
        raise SettingsError(f"--gpu {unknown[0]!r} is unknown; choose {', '.join(RTX_GPUS)}.")
    check_buildable(bundle)
    rows: list[dict[str, Any]] = []
    for name in gpus:
        start = time.monotonic()
        with Console(stderr=True).status(f"building for {name}"):
            decoder, compact = build_ahead(bundle, name)
        rows.append(
            {
                "gpu": name,
                "decoder_bytes": len(decoder.engine),
                "compact_bytes": len(compact.engine),
                "cache_updates_in_place": decoder.cache_updates,
                "fused_attentions": decoder.fused_attentions,
                "seconds": round(time.monotonic() - start, 1),
            }
        )
    if as_json:
        typer.echo(json.dumps({"builder": "TensorRT-RTX", "built": rows}))
        return
    table = Table(box=None, padding=(0, 2), title="TensorRT-RTX, ahead of time; nothing is kept")
    heads = ("GPU", "engine", "compact", "cache updates in place", "fused attentions", "seconds")
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        sizes = [f"{row[f'{name}_bytes'] / 1e6:,.1f} MB" for name in ("decoder", "compact")]
        table.add_row(str(row["gpu"]), *sizes, *[str(value) for value in list(row.values())[3:]])
    Console().print(table)
