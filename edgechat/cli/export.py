"""``edgechat export``: a model becomes a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from edgechat.errors import EdgechatError, SettingsError


def export(
    model: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder, a .gguf file, a hub id (owner/name) or the alias smollm2."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Bundle folder to make. Default: NAME-PRECISION."),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Short for --precision int8.")] = False,
    precision: Annotated[
        str | None,
        typer.Option(
            "-p", "--precision", help="int8 (smallest and fastest, the default) or fp32 (exact)."
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            help="Longest KV cache the bundle can run with, in tokens. Default: the model's "
            "context length."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing bundle.")
    ] = False,
) -> None:
    """Turn a model into a bundle that `edgechat run` can talk to.

    Needs neither torch nor transformers. The bundle folder appears complete or not at all.

    Examples: `edgechat export smollm2 --int8`, `edgechat export ./my-llama -o llama-int8`,
    `edgechat export model.gguf --precision fp32`
    """
    if int8 and precision not in (None, "int8"):
        raise SettingsError(f"--int8 and --precision {precision} contradict each other; give one.")
    chosen = precision or "int8"
    try:
        from edgechat.export import Progress, export_model, open_source
    except ModuleNotFoundError as missing:
        raise EdgechatError(
            f"exporting needs the package {missing.name}; install it with: "
            "pip install 'edgechat[export]'"
        ) from None
    console = Console(stderr=True)
    source = open_source(model, console.print)
    target = output or Path(f"{Path(source.name).name.replace(' ', '-')}-{chosen}")
    columns = (TextColumn("exporting layers"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("layers", total=None, visible=False)
        bundle = export_model(
            source,
            target,
            precision=chosen,
            capacity=capacity,
            overwrite=overwrite,
            progress=Progress(
                say=bar.console.print,
                layers=lambda done, total: bar.update(
                    task, completed=done, total=total, visible=True
                ),
            ),
        )
    size = sum(info.size for info in bundle.manifest.files.values())
    console.print(f"made [bold]{target}[/bold] ({size / 1e6:,.0f} MB, {chosen})", highlight=False)
    console.print(f"talk to it: edgechat run {target}", highlight=False)
