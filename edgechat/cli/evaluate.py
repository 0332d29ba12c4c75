"""``edgechat eval``: the quality of a bundle in numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from edgechat.bundle import Bundle, load_bundle
from edgechat.cli.evaluate_recall import run_recall
from edgechat.cli.options import AllowFallback
from edgechat.cli.plots import Series, check_plot, line_plot
from edgechat.errors import SettingsError
from edgechat.evaluate import Reader, Score, evaluate, read_ids
from edgechat.paths import read_text
from edgechat.settings import DEFAULT_PROFILE, Settings, load_profile


def eval_command(
    bundle: Annotated[Path, typer.Argument(help="The bundle to judge.")],
    text: Annotated[Path, typer.Argument(help="A text file to predict.")],
    tokens: Annotated[
        int | None, typer.Option(help="Only the first so many tokens. Default: all.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Cut the text into independent windows of so many tokens, each read with a full "
            "cache. Default: one stream through the cache policy."
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="key, window or full.")] = None,
    window: Annotated[int | None, typer.Option(help="Recent tokens kept.")] = None,
    sinks: Annotated[int | None, typer.Option(help="First tokens always kept.")] = None,
    profile: Annotated[str, typer.Option(help="Profile the rest comes from.")] = DEFAULT_PROFILE,
    against: Annotated[
        Path | None,
        typer.Option(help="A reference bundle (fp32): adds KL divergence and top-1 agreement."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a plot to this .png file: the loss by position, or of --recall."),
    ] = None,
    recall: Annotated[
        bool,
        typer.Option(
            "--recall",
            help="Test what is remembered instead: a password told once in the text, and, with "
            "--questions, facts told at the beginning of a conversation.",
        ),
    ] = False,
    questions: Annotated[
        Path | None,
        typer.Option(help="--recall: a .jsonl file of small talk, such as MT-Bench's questions."),
    ] = None,
    policies: Annotated[
        str,
        typer.Option(help="--recall: which to compare, of full, window, key, …+recall."),
    ] = "full,window,key,key+recall",
    distances: Annotated[
        str,
        typer.Option(help="--recall: tokens between what is told and the question."),
    ] = "2000,4000,7000",
    allow_fallback: AllowFallback = False,
) -> None:
    """Perplexity of a text: lower is better, 1 is perfect. Or, with --recall, memory.

    Examples: `edgechat eval my-int8 book.txt --tokens 8192 --context 2048 --against my-fp32`,
    `edgechat eval my-int8 book.txt --recall --questions mt_bench.jsonl --window 512`
    """
    for option, count in (("--tokens", tokens), ("--context", context)):
        if count is not None and count < 2:
            raise SettingsError(f"{option} must be at least 2, not {count}.")
    check_plot(plot)
    settings = load_profile(profile).override(
        policy=policy, cache_window=window, sinks=sinks, allow_fallback=allow_fallback or None
    )
    loaded = load_bundle(bundle)
    if recall:
        names = [name.strip() for name in policies.split(",")]
        run_recall(loaded, settings, read_text(text), questions, names, distances, as_json, plot)
        return
    if context is not None:
        settings = settings.override(policy="full")
    ids = read_ids(loaded, read_text(text), tokens)
    capacity = context or settings.slots(loaded.manifest.max_capacity, window is not None)
    reader = Reader(loaded, settings, capacity)
    reference = None if against is None else Reader(_twin(loaded, against), settings, capacity)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=len(ids))
        score = evaluate(
            reader, ids, context, reference, lambda done: bar.update(task, completed=done)
        )
    if plot is not None:
        line_plot(plot, "loss by position", "token", "nats a token", [_curve(score, bundle.name)])
    data = _as_dict(score, settings, capacity, context)
    if as_json:
        typer.echo(json.dumps(data))
        return
    console = Console()
    for name, value in data.items():
        if value is not None:
            shown = f"{value:,.4f}" if isinstance(value, float) else str(value)
            label = name.replace("_", " ")
            console.print(f"{label:<28}{shown}", highlight=False, markup=False)


def _twin(bundle: Bundle, against: Path) -> Bundle:
    """The reference bundle; SettingsError unless both speak the same tokens."""
    other = load_bundle(against)
    mine, theirs = (b.manifest.files["tokenizer.json"].sha256 for b in (bundle, other))
    if mine != theirs or bundle.manifest.dims.vocab_size != other.manifest.dims.vocab_size:
        raise SettingsError(f"{against} has another tokenizer; give a bundle of the same model.")
    return other


def _as_dict(
    score: Score, settings: Settings, capacity: int, context: int | None
) -> dict[str, float | int | str | None]:
    reference = score.reference_perplexity
    error = score.losses.std() / math.sqrt(len(score.losses))
    return {
        "tokens": len(score.losses),
        "policy": settings.policy,
        "capacity": capacity,
        "context": context,
        "perplexity": score.perplexity,
        "perplexity_standard_error": float(score.perplexity * error),
        "second_half_perplexity": None if context else score.second_half,
        "reference_perplexity": reference,
        "over_reference_percent": 100 * (score.perplexity / reference - 1) if reference else None,
        "kl_to_reference": score.kl,
        "top1_agreement": score.top1,
    }


def _curve(score: Score, name: str) -> Series:
    """The loss smoothed over about a fiftieth of the text."""
    size = max(1, len(score.losses) // 50)
    count = len(score.losses) // size
    means = score.losses[: count * size].reshape(count, size).mean(axis=1)
    return Series(name, (np.arange(count) * size + size // 2).tolist(), means.tolist())
