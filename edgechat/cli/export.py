"""``edgechat export``: a model becomes a bundle."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from edgechat.bundle import Bundle
from edgechat.cli.dry_run import show
from edgechat.errors import EdgechatError, SettingsError
from edgechat.measure import Ids, measure_apart
from edgechat.settings import DIALECTS, Settings, load_profile
from edgechat.template_check import check_template

LARGEST_LOSS = 3.0  # percent of perplexity; more is worth a warning


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
            "-p",
            "--precision",
            help="int8 (weights and activations; smallest and fastest, the default), int8-weight "
            "(weights only; the default for cuda, which has no int8), fp16 (GPUs) or fp32 (exact; "
            "on GPUs only to compare with).",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            show_default="cpu",
            help="What will run the bundle: cpu, cuda (ONNX Runtime on an NVIDIA GPU), or a Jetson "
            "by its JetPack: jetson-jp7 (TensorRT 10.15 or later) or jetson-jp6 (TensorRT 10.3).",
        ),
    ] = None,
    kv: Annotated[
        str | None,
        typer.Option(
            help="KV cache on the CPU: fp32 (the default), or int8 (a quarter of the memory). On "
            "GPUs it is fp16."
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Text (or .jsonl of chats) like what the model will meet. Default: a built-in one."
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            help="Longest KV cache the bundle can run with, in tokens. Default: the model's "
            "context length; on a Jetson, where it is the only one, at most 2,048."
        ),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(
            help="A PEFT LoRA folder (adapter_config.json, adapter_model.safetensors) to merge "
            "into the model."
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            help="Branch, tag or commit of a hub id. What is cached is used where the hub does "
            "not answer; HF_HUB_OFFLINE=1 never asks it."
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="Chat template: the name of one of the model's, or a file. Default: the model's "
            "own, or a plain one (User: … Assistant: …) if it has none."
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Take --target, --kv and --capacity from this profile, such as "
            "jetson-orin-nano-8gb. Join it with the use (npc,jetson-orin-nano-8gb): a Jetson's "
            "cache is made as long as the window."
        ),
    ] = None,
    importance: Annotated[
        bool,
        typer.Option(
            "--importance/--no-importance",
            help="Outputs that key tokens and recall need; without them prefill is a little "
            "faster, but the bundle can only keep a plain window.",
        ),
    ] = True,
    exporter: Annotated[
        str,
        typer.Option(
            help="native, or optimum for architectures that edgechat has no own code for: an fp32 "
            "bundle whose cache keeps a plain window. In an environment of its own."
        ),
    ] = "native",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing bundle.")
    ] = False,
    only_look: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Say what would be made, how large, and what stands in its way, without reading "
            "a tensor; exit code 1 if there could be no bundle.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print one JSON object.")
    ] = False,
) -> None:
    """Turn a model into a bundle that `edgechat run` can talk to.

    Needs neither torch nor transformers. The bundle folder appears complete or not at all.

    Examples: `edgechat export smollm2 --int8`, `edgechat export ./my-llama -o llama-int8`,
    `edgechat export model.gguf --precision fp32`, `edgechat export ./my-llama --dry-run`
    """
    if int8 and precision not in (None, "int8"):
        raise SettingsError(f"--int8 and --precision {precision} contradict each other; give one.")
    wished = Settings() if profile is None else load_profile(profile)
    if as_json and not only_look:
        raise SettingsError("--json is for --dry-run; leave it out or add --dry-run.")
    if target is None or wished.target in (None, target):
        kv = kv or wished.kv
    target = target or wished.target or "cpu"
    if capacity is None and wished.capacity is not None:
        fixed = DIALECTS.get(target, "").startswith("tensorrt")
        capacity = wished.slots(wished.capacity, False) if fixed else wished.capacity
    try:
        from edgechat.export import (
            TARGETS,
            Progress,
            check_options,
            dry_run,
            export_model,
            export_with_optimum,
            open_source,
        )
    except ModuleNotFoundError as missing:
        raise EdgechatError(
            f"exporting needs the package {missing.name}; install it with: "
            "pip install 'edgechat[export]'"
        ) from None
    signal.signal(signal.SIGTERM, _terminate)
    console = Console(stderr=True)
    chosen = precision or "int8"
    if precision is None and not int8 and exporter == "optimum":
        chosen = "fp32"
    elif precision is None and not int8 and target in TARGETS:
        chosen = TARGETS[target].precisions[0]
    backend = check_options(chosen, kv, capacity, target)
    others = (target != "cpu", kv, calibration, not importance, only_look)
    _check_exporter(exporter, chosen, any(others))
    source = open_source(model, console.print, adapter, revision)
    suffix = chosen if target == "cpu" else f"{target}-{chosen}"
    folder = (
        output.expanduser()
        if output
        else Path(f"{Path(source.name).name.replace(' ', '-')}-{suffix}")
    )
    if only_look:
        found = dry_run(
            source,
            folder,
            precision=chosen,
            target=target,
            kv=kv,
            capacity=capacity,
            calibration=calibration,
            overwrite=overwrite,
            importance=importance,
            chat_template=chat_template,
            check_template=check_template,
        )
        slots = found.capacity
        if slots is not None and not backend.is_tensorrt:  # whose cache is there whole
            slots = wished.slots(slots, False)
        show(found, folder, slots, as_json)
        return
    if exporter == "optimum":
        bundle = export_with_optimum(
            source,
            folder,
            capacity=capacity,
            overwrite=overwrite,
            progress=Progress(say=console.print),
            chat_template=chat_template,
            check_template=check_template,
        )
        _print_made(console, bundle)
        made = f"check it: edgechat verify {bundle.folder} --reference {model}"
        console.print(made, highlight=False, markup=False)
        return
    columns = (TextColumn("calibrating and writing layers"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("layers", total=None, visible=False)

        def layers(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=console.is_terminal)
            if not console.is_terminal and (done % 10 == 0 or done == total):
                console.print(f"layer {done} of {total}", highlight=False)

        bundle = export_model(
            source,
            folder,
            precision=chosen,
            target=target,
            kv=kv,
            capacity=capacity,
            calibration=calibration,
            overwrite=overwrite,
            importance=importance,
            measure=_measure(bar.console, backend.on_gpu),
            chat_template=chat_template,
            check_template=check_template,
            progress=Progress(
                say=partial(bar.console.print, markup=False),
                layers=layers,
            ),
        )
    _print_loss(console, bundle.manifest.quantization)
    _print_made(console, bundle)


def _check_exporter(exporter: str, precision: str, others: bool) -> None:
    """SettingsError for an unknown one, or what optimum's cannot do."""
    if exporter not in ("native", "optimum"):
        raise SettingsError(f"exporter {exporter!r} is unknown; choose native or optimum.")
    if exporter == "optimum" and (precision != "fp32" or others):
        raise SettingsError(
            "--exporter optimum makes fp32 bundles for the CPU and takes -o, --capacity, "
            "--chat-template, --revision and --overwrite only; leave the other options out."
        )


def _print_made(console: Console, bundle: Bundle) -> None:
    folder, manifest = bundle.folder, bundle.manifest
    size = sum(info.size for info in manifest.files.values()) / 1e6
    made = f"made {folder} ({size:,.0f} MB, {manifest.precision})"
    console.print(made, highlight=False, markup=False)
    if manifest.graph.dialect.startswith("tensorrt"):
        return
    options = "" if manifest.abilities.moves_keys else " --policy window --recall-blocks 0"
    console.print(f"talk to it: edgechat run {folder}{options}", highlight=False, markup=False)


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds like Ctrl-C, so that nothing half-written stays."""
    sys.exit(128 + number)


def _measure(console: Console, on_gpu: bool) -> Callable[[Bundle, Ids], float | None] | None:
    """How to measure a bundle's perplexity, or None where no ONNX Runtime is installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        console.print("note: onnxruntime is not installed, so the loss is not measured.")
        return None
    return partial(measure_apart, on_gpu=on_gpu)


def _print_loss(console: Console, quantization: dict[str, Any]) -> None:
    """One line such as "fp32 19.31 → int8 19.45, +0.7 %"."""
    if "perplexity" not in quantization:
        return
    before, after = quantization["fp32_perplexity"], quantization["perplexity"]
    percent = 100 * (after / before - 1)
    console.print(
        f"perplexity on the built-in text: fp32 {before:.2f} → quantised {after:.2f}, "
        f"{percent:+.1f} %",
        highlight=False,
    )
    if not percent <= LARGEST_LOSS:
        console.print(
            "[yellow]warning: quantisation costs more than 3 %; try --precision int8-weight, or "
            f"calibrate on more text (it was {quantization.get('calibration_tokens', 0):,} tokens "
            "of "
            f"{quantization.get('calibration', 'none')}; 4,000 to 8,000 are enough).[/yellow]"
        )
