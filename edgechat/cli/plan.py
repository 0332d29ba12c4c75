"""``edgechat plan``: whether a bundle fits a device, and how fast it can be at most."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgechat.bundle import Bundle, load_bundle
from edgechat.errors import DeviceError
from edgechat.memory_plan import Item, MemoryPlan, mib, plan_memory, remedies
from edgechat.roofline import MEASURED, UNMEASURED, limits
from edgechat.settings import DEFAULT_PROFILE, DIALECTS, Settings, load_profile

Rows = Iterable[tuple[str, ...]]


def plan(
    bundle: Annotated[Path, typer.Argument(help="A bundle folder.")],
    profile: Annotated[
        str,
        typer.Option(
            help="A profile that describes a device, such as jetson-orin-nano-8gb; several join "
            "by commas (npc,jetson-orin-nano-8gb)."
        ),
    ] = DEFAULT_PROFILE,
    window: Annotated[int | None, typer.Option(help="Plan for this many tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a bundle takes of a device's memory, line by line, what is left, and a limit of
    its speed. Nothing is loaded.

    Ends with exit code 1 when it does not fit, and says what would.
    """
    loaded = load_bundle(bundle)
    settings = load_profile(profile).override(cache_window=window)
    manifest, device = loaded.manifest, settings.device
    planned = plan_memory(manifest, settings, window is not None)
    fits = device is None or planned.fits(device)
    ways = [] if fits or device is None else remedies(manifest, settings, device)
    if as_json:
        typer.echo(json.dumps(_data(loaded, settings, planned, ways)))
    else:
        _print(wide_console(), profile, loaded, settings, planned)
    if not fits:
        raise DeviceError(
            f"{bundle} does not fit {profile}; "
            + (
                f"what would: {', or '.join(ways)}."
                if ways
                else "no smaller cache and no precision helps: choose a smaller model."
            )
        )


def wide_console() -> Console:
    """The terminal, or a file in which the arithmetic fits a line."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def print_memory(console: Console, planned: MemoryPlan) -> None:
    """The plan's lines, with their sums."""
    _table(console, "Memory while it talks", _rows(planned.talking, planned.talking_bytes))
    if planned.building:
        building = _rows(planned.building, planned.building_bytes)
        _table(console, "Memory while the engine is built, once", building)
    if planned.archive_disk_bytes:
        disk = f"{planned.archive_tokens:,} tokens that left the cache"
        _table(console, "Disk", [("archive", f"up to {mib(planned.archive_disk_bytes)}", disk)])


def _rows(items: Iterable[Item], together: int) -> Rows:
    for item in items:
        mark = " (estimated)" if item.estimated else ""
        yield item.name, mib(item.bytes), item.arithmetic + mark
    yield "together", mib(together), ""


def _data(loaded: Bundle, settings: Settings, planned: MemoryPlan, ways: list[str]) -> Any:
    device = settings.device
    data: dict[str, Any] = {"bundle": str(loaded.folder), **as_json_object(planned)}
    if device is not None:
        data |= {
            "device": dataclasses.asdict(device),
            "available_bytes": device.available_bytes,
            "left_bytes": planned.left(device),
            "left_while_building_bytes": planned.left_building(device),
            "fits": planned.fits(device),
            "remedies": ways,
            "limits": [
                dataclasses.asdict(limit)
                for limit in limits(loaded.manifest, settings, planned, device)
            ],
        }
    return data


def as_json_object(planned: MemoryPlan) -> dict[str, Any]:
    return {
        **dataclasses.asdict(planned),
        "talking_bytes": planned.talking_bytes,
        "building_bytes": planned.building_bytes,
    }


def _print(
    console: Console, profile: str, loaded: Bundle, settings: Settings, planned: MemoryPlan
) -> None:
    manifest, device = loaded.manifest, settings.device
    what = f"{manifest.name}, {manifest.precision}, KV cache {manifest.kv_dtype}"
    console.print(f"{what}, for {manifest.graph.dialect}; profile {profile}\n", markup=False)
    print_memory(console, planned)
    if device is None:
        console.print("The profile describes no device: edgechat profiles lists those that do.")
        return
    reserved = f"{device.memory_gib:g} GiB - {device.reserved_gib:g} GiB for the system"
    whose = "memory" if device.shared_memory else "the GPU's own memory"
    rows = [
        (whose, mib(device.available_bytes), reserved),
        ("left while it talks", mib(planned.left(device)), ""),
    ]
    if planned.building:
        swap = f"with {device.swap_gib:g} GiB of swap" if device.swap_gib else ""
        rows.append(("left while it builds", mib(planned.left_building(device)), swap))
    _table(console, "Fits" if planned.fits(device) else "Does not fit", rows)
    found = limits(manifest, settings, planned, device)
    if found:
        speeds = [(x.name, f"{x.tokens_per_second:,.0f} tokens/s", x.arithmetic) for x in found]
        _table(console, "Speed: the device's limit, an estimate", speeds)
    for note in _notes(profile, settings, planned):
        console.print(note, markup=False)


def _notes(profile: str, settings: Settings, planned: MemoryPlan) -> Iterable[str]:
    yield UNMEASURED if planned.on_gpu else MEASURED
    if planned.allocated_slots > planned.slots:
        more = planned.allocated_slots * planned.kv_bytes_per_slot / 1e6
        yield (
            f"Every step reads all {planned.allocated_slots:,} slots ({more:,.1f} MB), the window "
            f"uses {planned.slots:,}: an export with --capacity {planned.slots} is faster."
        )
    if settings.target is not None and DIALECTS[settings.target] != planned.dialect:
        yield (
            f"The bundle is for {planned.dialect}; --profile {profile} exports for "
            f"{settings.target}."
        )


def _table(console: Console, title: str, rows: Rows) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print()
