"""``edgechat profiles``: which profiles there are and what they set."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgechat.device import Device
from edgechat.runtime.sampling import SamplingSettings
from edgechat.settings import DEFAULT_PROFILE, Settings, load_profile, profile_names

MEANINGS = {
    "policy": "what stays in the KV cache: key, window or full",
    "cache_window": "tokens the cache holds besides the sinks",
    "key_token_ratio": "part of the window for old tokens that mattered",
    "sinks": "first tokens, always kept",
    "target": "what to export for",
    "capacity": "longest cache of the device: export takes it, a longer window shrinks",
    "kv": "KV precision, fp32 or int8: export takes it",
    "prefill_chunk": "most tokens of a message that are read at once",
    "archive_mib": "disk space for what left the cache; 0 = forget it",
    "archive_folder": "where that is; the system's temporary folder",
    "recall_blocks": "passages brought back for a question; 0 = off",
    "pinned_questions": "last messages of the user that always stay",
    "delta_threshold": "part of the conversation an edit may change without reading on from there",
    "cache_purge_interval": "turns between clearing recalled and surplus tokens; 0 = never",
    "prefill_optimization": "keep the system prompt's cache on disk for the next start",
    "coherence_check": "off, report, or retry replies that loop or leave the topic",
    "history_summary": "tokens of evicted turns the model sums up together; 0 = off",
    "threads": "CPU threads; - = usable cores",
    "allow_fallback": "run a bundle for CUDA on the CPU, slowly, where CUDA is missing",
    "max_tokens": "longest reply",
    "sampling.temperature": "0 always takes the likeliest token",
    "sampling.top_k": "only the k likeliest tokens; 0 = off",
    "sampling.top_p": "only the likeliest tokens up to this probability; 1 = off",
    "sampling.min_p": "only tokens at least this fraction as likely as the best; 0 = off",
    "sampling.repeat_penalty": "makes recent tokens less likely; 1 = off",
    "sampling.seed": "makes sampling repeatable",
    "device.memory_gib": "for edgechat plan: the device's memory",
    "device.shared_memory": "whether processor and GPU share it",
    "device.reserved_gib": "what the system takes of it",
    "device.swap_gib": "swap space that building an engine may use",
    "device.bandwidth_gb_per_second": "the memory's bandwidth",
    "device.int8_tops": "10^12 dense INT8 operations a second",
    "device.fp16_tflops": "10^12 dense FP16 operations a second",
}


def profiles(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with all values of each.")
    ] = False,
) -> None:
    """List the profiles and what each sets; the rest is as in the defaults.

    Use one with `--profile NAME`, or several joined by commas, of which later ones win:
    `edgechat run BUNDLE --profile npc,small-cpu`. A profile of your own is a .yaml file with the
    same names: `--profile my.yaml`.
    """
    found = {name: load_profile(name) for name in profile_names()}
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(s) for name, s in found.items()}))
        return
    console, defaults = Console(highlight=False), values(Settings())
    for name, settings in found.items():
        mark = " (used when none is named)" if name == DEFAULT_PROFILE else ""
        console.print(Text.assemble((name, "bold"), f"{mark}: {settings.description}"))
        own = {k: v for k, v in values(settings).items() if v != defaults[k]}
        console.print(_rows(own) if own else "  as the defaults")
        console.print()
    console.print(Text("Defaults", "bold"))
    console.print(_rows(defaults))


def values(settings: Settings) -> dict[str, object]:
    """What ``settings`` say, the values of sampling and device behind a dot."""
    flat: dict[str, object] = dataclasses.asdict(settings)
    for name in ("description", "sampling", "device"):
        del flat[name]
    for name, of in (("sampling", settings.sampling), ("device", settings.device)):
        for f in dataclasses.fields(SamplingSettings if name == "sampling" else Device):
            flat[f"{name}.{f.name}"] = getattr(of, f.name, None)
    return flat


def _rows(shown: dict[str, object]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 2))
    for name, value in shown.items():
        table.add_row(Text(name), Text("-" if value is None else str(value)), Text(MEANINGS[name]))
    return table
