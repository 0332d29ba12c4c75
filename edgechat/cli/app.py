"""The typer application; each command is a module."""

from __future__ import annotations

import typer

from edgechat import __version__
from edgechat.cli import (
    bench,
    build,
    cache,
    doctor,
    evaluate,
    export,
    inspect,
    plan,
    profiles,
    run,
    verify,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Long conversations with small quantised language models on the edge.\n\n"
    "Typical use:\n\n"
    "1. On a workstation: `edgechat export smollm2 --int8`\n\n"
    "2. On the device: `edgechat run SmolLM2-135M-Instruct-int8`",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgechat {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


app.command("export", no_args_is_help=True)(export.export)
app.command("build", no_args_is_help=True)(build.build)
app.command("run", no_args_is_help=True)(run.run)
app.command("eval", no_args_is_help=True)(evaluate.eval_command)
app.command("bench", no_args_is_help=True)(bench.bench)
app.command("verify", no_args_is_help=True)(verify.verify)
app.command("inspect", no_args_is_help=True)(inspect.inspect)
app.command("plan", no_args_is_help=True)(plan.plan)
app.command("profiles")(profiles.profiles)
app.command("doctor")(doctor.doctor)
app.command("cache", no_args_is_help=True)(cache.cache)
