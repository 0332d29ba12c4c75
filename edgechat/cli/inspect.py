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
from edgechat.cli.plan import as_json_object, print_memory, wide_console
from edgechat.memory_plan import MemoryPlan, mib, plan_memory
from edgechat.runtime.archive import BLOCK
from edgechat.settings import DEFAULT_PROFILE, Settings, load_profile


def inspect(
    bundle: Annotated[Path, typer.Argument(help="A bundle folder.")],
    profile: Annotated[
        str,
        typer.Option(help="Profile (or .yaml file, or several joined by commas) to plan for."),
    ] = DEFAULT_PROFILE,
    policy: Annotated[str | None, typer.Option(help="Plan for key, window or full.")] = None,
    window: Annotated[int | None, typer.Option(help="Plan for this many tokens.")] = None,
    sinks: Annotated[int | None, typer.Option(help="Plan for this many sink tokens.")] = None,
    recall_blocks: Annotated[
        int | None, typer.Option(help="Plan for this many recalled passages; 0 = no recall.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a bundle's sizes and graph contract, what a profile sets, and the memory it takes.

    Every file is checked.
    """
    loaded = load_bundle(bundle)
    loaded.verify()
    settings = load_profile(profile).override(
        policy=policy, cache_window=window, sinks=sinks, recall_blocks=recall_blocks
    )
    manifest = loaded.manifest
    plan = plan_memory(manifest, settings, window is not None)
    if as_json:
        data = {k: v for k, v in dataclasses.asdict(manifest).items() if k != "files"}
        data["settings"] = dataclasses.asdict(settings)
        typer.echo(json.dumps({**data, "memory_plan": as_json_object(plan)}, ensure_ascii=False))
        return
    console = Console()
    sections = [
        ("Model", _model(manifest)),
        ("Abilities", _abilities(manifest)),
        (f"Graph contract ({manifest.graph.dialect})", _contract(manifest)),
        (f"Settings (profile {profile})", _settings(manifest, settings, plan)),
    ]
    for title, rows in sections:
        table = Table(
            title=title, title_justify="left", show_header=False, box=None, padding=(0, 2)
        )
        for name, value in rows:
            table.add_row(Text(name), Text(value))
        console.print(table, highlight=False)
        console.print()
    print_memory(wide_console(), plan)


def _model(m: Manifest) -> list[tuple[str, str]]:
    d = m.dims
    return [
        ("name", m.name),
        ("architecture", f"{m.architecture} (from {m.source})"),
        *([("adapter", f"{m.adapter.name} (merged)")] if m.adapter else []),
        ("precision", f"weights {m.precision}, KV cache {m.kv_dtype}"),
        ("layers", f"{d.num_layers} x hidden {d.hidden_size}, MLP {d.intermediate_size}"),
        ("attention", f"{d.num_heads} heads, {d.num_kv_heads} KV heads of size {d.head_dim}"),
        ("vocabulary", f"{d.vocab_size:,} ({m.tokens.size:,} tokens in the tokenizer)"),
        (
            "weights read per token",
            f"{m.weight_bytes_per_token / 1e6:,.1f} MB",
        ),
        ("context", f"{d.context_length:,} tokens trained, KV capacity up to {m.max_capacity:,}"),
        (
            "rotary",
            "; ".join(f"{r.kind}, {r.dim} features, {len(r.layers)} layers" for r in m.rotary)
            or ("none" if m.abilities.moves_keys else "the graph's own, if any"),
        ),
        ("end tokens", ", ".join(map(str, m.tokens.eos))),
    ]


def _abilities(m: Manifest) -> list[tuple[str, str]]:
    able = m.abilities
    return [
        ("KV cache", "one buffer" if able.in_place else "two buffers; each step copies all of it"),
        ("compaction, edits", "keys are moved" if able.moves_keys else "what stays is read again"),
        ("key tokens, recall", "yes" if m.has_importance else "no"),
        ("sessions, forks", "yes"),
    ]


def _contract(m: Manifest) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for kind, tensors in (("in", m.graph.inputs), ("out", m.graph.outputs)):
        rows += [(f"{kind}  {t.name}", f"{t.dtype} {_shape(t.shape)}") for t in tensors]
    return rows


def _settings(m: Manifest, s: Settings, plan: MemoryPlan) -> list[tuple[str, str]]:
    rows = [("policy", s.policy)]
    if s.policy != "full":
        room = plan.slots - s.sinks
        shrunk = "" if room == s.cache_window else f" ({s.cache_window:,} asked for)"
        rows += [
            ("window", f"{room:,} tokens{shrunk}"),
            ("sinks", f"{s.sinks:,} tokens"),
            ("pinned questions", f"the last {s.pinned_questions}"),
        ]
    if s.policy == "key":
        rows.append(("key tokens", f"up to {s.keys:,} of the window"))
    if s.recalls:
        held = f"{mib(plan.archive_disk_bytes)} on disk, {plan.archive_tokens:,}"
        where = "" if s.archive_folder is None else f", in {s.archive_folder}"
        rows += [
            ("recall", f"{s.recall_blocks} blocks of {BLOCK} tokens for a question"),
            ("archive", f"up to {held} tokens{where}"),
        ]
    else:
        rows.append(("recall", "off"))
    if not m.has_importance and (s.recalls or s.policy == "key"):
        rows.append(
            (
                "note",
                "the bundle has neither key tokens nor recall and runs with --policy window "
                "--recall-blocks 0 only",
            )
        )
    return rows


def _shape(shape: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(s) for s in shape) + "]"
