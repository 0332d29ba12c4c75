"""``edgechat verify``: whether to trust a bundle."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgechat.bundle import load_bundle
from edgechat.errors import EdgechatError


def verify(
    bundle: Annotated[Path, typer.Argument(help="The bundle to check.")],
    reference: Annotated[
        Path,
        typer.Option(help="What it was made from: a Hugging Face folder, or a .gguf file."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare a bundle with the model it was made from, as transformers runs it.

    Logits, greedy text, chat template and tokenizer. Exits with 1 when one of them is not as it
    should be at the bundle's precision. Bundles for GPUs are run on the CPU.

    Example: `edgechat verify my-model-int8 --reference ./my-model`
    """
    loaded = load_bundle(bundle)
    loaded.verify()
    status = Console(stderr=True).status("loading")
    try:
        from edgechat.verify import verify as compare

        with status:
            checks = compare(loaded, reference.expanduser(), status.update)
    except ModuleNotFoundError as missing:
        raise EdgechatError(
            f"verifying needs the package {missing.name}; install it with: "
            "pip install 'edgechat[verify,cpu]'"
        ) from None
    failed = [check.name for check in checks if not check.passed]
    if as_json:
        facts = {"bundle": str(bundle), "reference": str(reference), "trusted": not failed}
        rows = [dataclasses.asdict(check) for check in checks]
        typer.echo(json.dumps({**facts, "checks": rows}, ensure_ascii=False))
        raise typer.Exit(bool(failed))
    precision, cache = loaded.manifest.precision, loaded.manifest.kv_dtype
    console = Console()
    console.print(Text(f"{bundle} ({precision}, {cache} cache) against {reference}"))
    table = Table(box=None, padding=(0, 2))
    for column in ("", "found", "allowed", ""):
        table.add_column(column)
    for check in checks:
        verdict = Text("ok", "green") if check.passed else Text("NO", "bold red")
        table.add_row(check.name, check.found, check.allowed, verdict)
    console.print(table, highlight=False)
    for check in checks:
        if check.note:
            console.print(Text(f"{check.name}: {check.note}"))
    if not failed:
        console.print(Text(f"trust it: it answers as its original does, as far as {precision} can"))
        return
    console.print(Text(f"do not trust it: {', '.join(failed)}", "bold red"))
    raise typer.Exit(1)
