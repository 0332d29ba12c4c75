"""``edgechat bench``: speeds, spread and distance to the machine's limit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from edgechat.benchmark import Bench, Measure, memory_bandwidth, peak_memory
from edgechat.bundle import Manifest, load_bundle
from edgechat.cli.plots import Series, check_plot, line_plot
from edgechat.errors import SettingsError
from edgechat.runtime.telemetry import Sampler, Summary

PREFILLS = (128, 512, 2048)
HISTORIES = (128, 512, 2048, 4096, 7900)
DELTA = 32
POWER_SECONDS = 5.0  # of decoding; sensors and tegrastats give a value or two a second


def bench(
    bundle: Annotated[Path, typer.Argument(help="A bundle folder.")],
    capacity: Annotated[
        int | None, typer.Option(help="Longest history measured. Default: up to 2,048 + 64.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Counted runs of each measure.")] = 5,
    threads: Annotated[int | None, typer.Option(help="CPU threads. Default: usable cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write decode speed over history to this .png file.")
    ] = None,
) -> None:
    """Measure a bundle on this machine: medians of several runs after a warm-up.

    A decode step reads every weight once, so memory bandwidth is its limit (the roofline).
    Where the machine measures power, five seconds of decoding say how many tokens a joule gives.
    """
    if rounds < 1:
        raise SettingsError(f"--rounds must be at least 1, not {rounds}.")
    if threads is not None and not 1 <= threads <= 1024:
        raise SettingsError(f"--threads must be between 1 and 1024, not {threads}.")
    check_plot(plot)
    loaded = load_bundle(bundle)
    manifest = loaded.manifest
    size = capacity or min(manifest.max_capacity, 2048 + 64)
    b = Bench(loaded, size, threads, rounds)
    console = Console(stderr=True)
    power: Summary | None = None
    with (
        console.status("measuring") as status,
        Sampler() as sampler,
        sampler.span() as span,
    ):

        def say(what: str) -> None:
            status.update(f"measuring {what}")

        say("prefill")
        prefill = {n: b.prefill(n) for n in PREFILLS if n <= size}
        decode = {}
        for history in HISTORIES:
            if history + 16 <= size:
                say(f"decode at {history:,}")
                decode[history] = b.decode(history)
        history = max(decode, default=0)
        say("later turns")
        reuse, again = b.later_turn(history, min(DELTA, size - history))
        peak = peak_memory()
        say("memory bandwidth")
        bandwidth = memory_bandwidth(b.threads)
        if span.summary().watts is not None:
            say("power")
            with sampler.span() as decoding:
                decoded = b.decode_for(POWER_SECONDS, history)
            power = decoding.summary()
    data: dict[str, Any] = {
        "bundle": str(bundle),
        "precision": manifest.precision,
        "kv_dtype": manifest.kv_dtype,
        "threads": b.threads,
        "load_seconds": b.load_seconds,
        "prefill_tokens_per_second": prefill,
        "decode_tokens_per_second": decode,
        "later_turn_history": history,
        "later_turn_seconds": reuse,
        "later_turn_refed_seconds": again,
        "memory_bandwidth_gb_per_second": bandwidth,
        "roofline_percent": {
            n: 100 * m.median * bytes_per_token(manifest, n) / (bandwidth.median * 1e9)
            for n, m in decode.items()
        },
        "bytes_per_token": {n: bytes_per_token(manifest, n) for n in decode},
        "peak_resident_bytes": peak,
        "device": span.summary(),
        "decode_device": power,
        "tokens_per_joule": None if power is None else power.per_joule(decoded),
    }
    if plot is not None:
        speeds = [m.median for m in decode.values()]
        line_plot(
            plot,
            "decode speed",
            "tokens in the cache",
            "tokens/s",
            [Series(bundle.name, list(decode), speeds)],
        )
    if as_json:
        typer.echo(json.dumps(data, default=dataclasses.asdict))
    else:
        _print(Console(), data)


def bytes_per_token(manifest: Manifest, history: int) -> int:
    """What a decode step must read: all weights once, and the keys and values so far."""
    return int(manifest.weight_bytes_per_token + history * manifest.kv_bytes_per_slot)


def _print(console: Console, data: dict[str, Any]) -> None:
    table = Table(box=None, padding=(0, 2))
    for column in ("", "median", "low", "high"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, m: Measure, unit: str, scale: float = 1, digits: int = 0) -> None:
        numbers = [f"{v * scale:,.{digits}f} {unit}" for v in (m.median, m.low, m.high)]
        table.add_row(name, *numbers)

    for tokens, m in data["prefill_tokens_per_second"].items():
        row(f"prefill {tokens:,}", m, "tok/s")
    for history, m in data["decode_tokens_per_second"].items():
        row(f"decode behind {history:,}", m, "tok/s")
    history = data["later_turn_history"]
    row(f"turn of {DELTA} tokens behind {history:,}", data["later_turn_seconds"], "ms", 1e3, 1)
    row("  the same, history fed again", data["later_turn_refed_seconds"], "ms", 1e3, 1)
    row("memory bandwidth", data["memory_bandwidth_gb_per_second"], "GB/s", digits=1)
    console.print(table, highlight=False)
    for history, percent in data["roofline_percent"].items():
        size = data["bytes_per_token"][history] / 1e6
        console.print(
            f"  behind {history:,}: {size:,.1f} MB a token, {percent:.0f} % of the bandwidth",
            highlight=False,
        )
    console.print(f"  loaded in {data['load_seconds']:.2f} s, {data['threads']} threads")
    if data["peak_resident_bytes"]:
        peak = data["peak_resident_bytes"] / (1 << 20)
        console.print(f"  peak resident memory {peak:,.0f} MiB (weights, KV cache, this benchmark)")
    for line in _device_lines(data):
        console.print(f"  {line}", highlight=False)


def _device_lines(data: dict[str, Any]) -> list[str]:
    """Power, temperature and throttling; what this machine does not measure is said to be so."""
    whole: Summary = data["device"]
    power: Summary | None = data["decode_device"]
    lines = ["power not measured" if power is None or power.watts is None else _power(power, data)]
    if whole.celsius_before is None:
        lines.append("temperature not measured")
    else:
        lines.append(
            f"{whole.celsius_before:.0f} °C before, {whole.celsius_after:.0f} °C after, "
            f"{whole.celsius_most:.0f} °C at most"
        )
    if whole.throttled:
        lines.append(
            f"throttled ({', '.join(whole.throttled)}): cooler, or with more power, it is faster"
        )
    return lines


def _power(power: Summary, data: dict[str, Any]) -> str:
    history = data["later_turn_history"]
    return (
        f"decode behind {history:,}: {power.watts:.1f} W ({' + '.join(power.counted_rails)}), "
        f"{data['tokens_per_joule']:.1f} tokens/J"
    )
