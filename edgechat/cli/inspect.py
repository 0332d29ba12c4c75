"""``edgechat inspect``: what a bundle is and what it will need."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgechat.bundle import Manifest, load_bundle
from edgechat.settings import DEFAULT_PROFILE, load_profile

MIB = 1 << 20


def inspect(
    bundle: Annotated[Path, typer.Argument(help="A bundle folder.")],
    profile: Annotated[
        str, typer.Option(help="Profile (or .yaml file) whose memory is planned.")
    ] = DEFAULT_PROFILE,
    window: Annotated[int | None, typer.Option(help="Plan for this many recent tokens.")] = None,
    sinks: Annotated[int | None, typer.Option(help="Plan for this many sink tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a bundle's sizes, graph contract and memory plan; every file is checked."""
    loaded = load_bundle(bundle)
    loaded.verify()
    settings = load_profile(profile).override(cache_window=window, sinks=sinks)
    manifest = loaded.manifest
    capacity = settings.capacity(manifest.max_capacity, window is not None)
    plan = memory_plan(manifest, capacity)
    if as_json:
        data = {k: v for k, v in dataclasses.asdict(manifest).items() if k != "files"}
        typer.echo(json.dumps({**data, "memory_plan": plan}, ensure_ascii=False))
        return
    console = Console()
    for title, rows in _sections(manifest, profile, plan):
        table = Table(
            title=title, title_justify="left", show_header=False, box=None, padding=(0, 2)
        )
        for name, value in rows:
            table.add_row(Text(name), Text(value))
        console.print(table, highlight=False)
        console.print()


def memory_plan(manifest: Manifest, capacity: int) -> dict[str, int]:
    """Bytes a run with ``capacity`` KV slots needs."""
    weights = sum(i.size for n, i in manifest.files.items() if n != "tokenizer.json")
    kv = manifest.kv_bytes_per_slot * capacity
    return {
        "weight_bytes": weights,
        "weight_bytes_read_per_token": manifest.weight_bytes_per_token,
        "kv_capacity_tokens": capacity,
        "kv_bytes_per_token": manifest.kv_bytes_per_slot,
        "kv_bytes_at_capacity": kv,
        "total_bytes": weights + kv,
    }


def _sections(
    m: Manifest, profile: str, plan: dict[str, int]
) -> list[tuple[str, list[tuple[str, str]]]]:
    d, capacity = m.dims, plan["kv_capacity_tokens"]
    model = [
        ("name", m.name),
        ("architecture", f"{m.architecture} (from {m.source})"),
        ("precision", f"weights {m.precision}, KV cache {m.kv_dtype}"),
        ("layers", f"{d.num_layers} x hidden {d.hidden_size}, MLP {d.intermediate_size}"),
        ("attention", f"{d.num_heads} heads, {d.num_kv_heads} KV heads of size {d.head_dim}"),
        ("vocabulary", f"{d.vocab_size:,} ({m.tokens.size:,} tokens in the tokenizer)"),
        ("context", f"{d.context_length:,} tokens trained, KV capacity up to {m.max_capacity:,}"),
        (
            "rotary",
            "; ".join(f"{r.kind}, {r.dim} features, {len(r.layers)} layers" for r in m.rotary)
            or "none",
        ),
        ("end tokens", ", ".join(map(str, m.tokens.eos))),
    ]
    contract: list[tuple[str, str]] = []
    for kind, tensors in (("in", m.graph.inputs), ("out", m.graph.outputs)):
        contract += [(f"{kind}  {t.name}", f"{t.dtype} {_shape(t.shape)}") for t in tensors]
    memory = [
        ("weights", f"{plan['weight_bytes'] / MIB:,.0f} MiB on disk"),
        ("read per token", f"{plan['weight_bytes_read_per_token'] / 1e6:,.1f} MB of weights"),
        ("KV cache", f"{plan['kv_bytes_per_token'] / 1024:,.1f} KiB a token"),
        (
            f"at profile {profile}",
            f"{capacity:,} tokens = {plan['kv_bytes_at_capacity'] / MIB:,.0f} MiB",
        ),
        ("weights + KV cache", f"{plan['total_bytes'] / MIB:,.0f} MiB"),
    ]
    return [
        ("Model", model),
        (f"Graph contract ({m.graph.dialect})", contract),
        ("Memory", memory),
    ]


def _shape(shape: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(s) for s in shape) + "]"
