"""``edgechat export --dry-run``: what would be made, as a table or JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgechat.errors import EdgechatError

if TYPE_CHECKING:
    from edgechat.export import Forecast

MIB = 1 << 20


def show(found: Forecast, folder: Path, slots: int | None, as_json: bool) -> None:
    """Print ``found`` and what a run with ``slots`` in the KV cache would take; EdgechatError if
    there were problems."""
    run = _memory(found, slots)
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), "run": run}, ensure_ascii=False))
    else:
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name, value in _rows(found, folder, run):
            table.add_row(Text(name), Text(value))
        Console().print(table, highlight=False)
    if found.problems:
        raise EdgechatError(" Also: ".join(found.problems))


def _memory(found: Forecast, slots: int | None) -> dict[str, int] | None:
    """Bytes of weights and KV cache."""
    if slots is None or found.bundle_bytes is None or found.kv_bytes_per_token is None:
        return None
    kv = slots * found.kv_bytes_per_token
    return {"kv_slots": slots, "kv_bytes": kv, "total_bytes": kv + found.bundle_bytes}


def _rows(found: Forecast, folder: Path, run: dict[str, int] | None) -> list[tuple[str, str]]:
    rows = [("model", f"{found.name} (from {found.source})")]
    if found.adapter:
        rows.append(("adapter", f"{found.adapter}, merged"))
    if found.dims:
        d = found.dims
        windows = f", {found.windowed_layers} with a window" if found.windowed_layers else ""
        rows += [
            ("architecture", f"{found.architecture}, {found.parameters or 0:,} parameters"),
            (
                "layers",
                f"{d['num_layers']} x hidden {d['hidden_size']}, MLP {d['intermediate_size']}"
                f"{windows}",
            ),
            (
                "attention",
                f"{d['num_heads']} heads, {d['num_kv_heads']} KV heads of size {d['head_dim']}",
            ),
            (
                "context",
                f"{d['context_length']:,} tokens trained, KV capacity {found.capacity:,}",
            ),
        ]
    if found.tokenizer_size is not None:
        ends = ", ".join(map(str, found.eos or [])) or "none"
        rows += [
            ("tokenizer", f"{found.tokenizer_size:,} tokens, end tokens {ends}"),
            ("chat template", found.chat_template or "none"),
        ]
    rows.append(("precision", f"{found.precision} for {found.target}, KV {found.kv_dtype}"))
    if found.bundle_bytes is not None:
        rows.append(("bundle", f"{folder}, about {found.bundle_bytes / MIB:,.0f} MiB"))
    if run is not None and found.kv_bytes_per_token:
        rows.append(
            (
                "to run",
                f"about {run['total_bytes'] / MIB:,.0f} MiB: weights, and a KV cache of "
                f"{run['kv_slots']:,} tokens x {found.kv_bytes_per_token / 1024:,.1f} KiB",
            )
        )
    rows += [("step" if index == 0 else "", step) for index, step in enumerate(found.steps)]
    rows += [("note", note.removeprefix("note: ")) for note in found.notes]
    return [*rows, *(("problem", problem) for problem in found.problems)]
