"""From a source to a finished bundle folder."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgechat.bundle import (
    SCHEMA,
    Bundle,
    Dims,
    Manifest,
    Rotary,
    file_info,
    load_bundle,
    write_manifest,
)
from edgechat.errors import BundleError
from edgechat.export.graphs import write_graphs
from edgechat.export.prepare import TemplateCheck, read_model, read_text_files, tokens_of
from edgechat.export.quantize.activations import perplexity
from edgechat.export.quantize.calibration import evaluation_text, windows
from edgechat.export.quantize.recipe import Recipe
from edgechat.export.size import OTHERS, data_bytes
from edgechat.export.sources import Source
from edgechat.export.sources.base import check_tied
from edgechat.export.spec import DecoderSpec, Ids
from edgechat.export.targets import check_options
from edgechat.paths import folder_beside, remove_leftovers

Measure = Callable[[Bundle, Ids], float | None]
KV_TYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}


@dataclass(frozen=True)
class Loss:
    """Perplexity on the built-in evaluation text."""

    fp32_perplexity: float
    perplexity: float


@dataclass
class Progress:
    """Callbacks of a long export: ``say`` gets lines, ``layers`` (done, total)."""

    say: Callable[[str], None] = lambda line: None
    layers: Callable[[int, int], None] = lambda done, total: None


def export_model(
    source: Source,
    output: Path,
    precision: str = "int8",
    kv: str | None = None,
    capacity: int | None = None,
    calibration: Path | None = None,
    overwrite: bool = False,
    importance: bool = True,
    progress: Progress | None = None,
    measure: Measure | None = None,
    target: str = "cpu",
    chat_template: str | None = None,
    check_template: TemplateCheck | None = None,
) -> Bundle:
    """Write a bundle of ``source`` to the folder ``output`` and return it.

    ``precision``: int8 (W8A8), int8-weight (8-bit weights, float activations), fp16 or fp32;
    ``kv``: fp32 or int8 cache; ``target``: a name in TARGETS, which says what can be chosen.
    ``capacity`` is the longest KV cache the bundle can be run with, in tokens (default: the
    target's, from the model's context length). ``calibration`` is a text or .jsonl file
    (default: a built-in text). ``importance`` adds the outputs that key tokens and recall need.
    ``measure`` returns the finished bundle's perplexity on token ids, or None where that cannot
    be known; it goes into the manifest beside the unquantised model's. ``chat_template`` is the
    name of one of the model's or a file (default: its own); ``check_template`` tries it before a
    tensor is read. The folder appears complete or not at all. Raises SourceError,
    UnsupportedModelError, SettingsError or BundleError.
    """
    progress = progress or Progress()
    backend = check_options(precision, kv, capacity, target)
    kv = backend.kv(precision, kv)
    model = read_model(source, backend, capacity)
    text = read_text_files(source, chat_template, check_template)
    tokens = tokens_of(model.spec, text)
    for note in (*model.notes, *text.template.notes):
        progress.say(note)
    check_tied(source, model.weights)
    bos = tokens.bos if tokens.adds_bos else None
    static, spec, weights = backend.is_tensorrt, model.spec, model.weights
    recipe = Recipe(weights, spec, precision, kv, text.tokenizer, bos, calibration, static)
    needed = OTHERS + data_bytes(recipe.spec, precision, model.capacity, importance, backend.on_gpu)
    with new_folder(output, overwrite, needed) as folder:
        graphs = write_graphs(
            folder,
            backend.dialect,
            recipe,
            precision,
            model.capacity,
            importance,
            lambda done: progress.layers(done, spec.num_layers),
        )
        texts = text.write(folder)
        progress.say("checksums")
        manifest = Manifest(
            schema=SCHEMA,
            name=source.name,
            architecture=spec.architecture,
            source=source.kind,
            precision=precision,
            kv_dtype=KV_TYPES[kv],
            max_capacity=model.capacity,
            weight_bytes_per_token=graphs.weight_bytes_per_token,
            dims=dims_of(spec),
            rotary=_rotaries(spec),
            graph=graphs.decoder,
            compact=graphs.compact,
            tokens=tokens,
            files={name: file_info(folder / name) for name in (*graphs.files, *texts)},
            quantization=recipe.report(),
            adapter=source.adapter,
        )
        write_manifest(folder, manifest)
        written = load_bundle(folder)  # what was written must load
        if measure is not None and not precision == kv == "fp32":
            progress.say("measuring what quantisation costs")
            ids = windows(text.tokenizer, evaluation_text(), bos).ravel()[: manifest.max_capacity]
            found = measure(written, ids)
            if found is None:
                progress.say(
                    "note: the loss could not be measured: the process that ran the bundle was "
                    "ended, probably for want of memory."
                )
            else:
                loss = Loss(perplexity(weights, spec, ids), found)
                quantization = {**manifest.quantization, **dataclasses.asdict(loss)}
                write_manifest(folder, dataclasses.replace(manifest, quantization=quantization))
    return load_bundle(output)


def _rotaries(spec: DecoderSpec) -> tuple[Rotary, ...]:
    return tuple(
        Rotary(r.dim, r.inv_freq, r.kind, tuple(i for i, of in enumerate(spec.rotary) if of == r))
        for r in spec.rotaries
    )


def dims_of(spec: DecoderSpec) -> Dims:
    return Dims(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        context_length=spec.context_length,
    )


def check_place(target: Path, overwrite: bool, needed: int) -> None:
    """BundleError where a bundle of ``needed`` bytes cannot or must not be written."""
    if target.is_symlink():
        raise BundleError(f"{target} is a link; name the folder itself with -o.")
    if target.exists() and not overwrite:
        raise BundleError(f"{target} exists; choose another -o or pass --overwrite.")
    if target.exists() and not (target / "edgechat.json").is_file():
        raise BundleError(f"{target} exists and is no bundle; --overwrite replaces only bundles.")
    parent = next(folder for folder in target.parents if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise BundleError(
            f"{parent} has {free >> 20:,} MiB free but the bundle needs about "
            f"{needed >> 20:,} MiB; free some space or choose another -o."
        )


@contextlib.contextmanager
def new_folder(target: Path, overwrite: bool, needed: int) -> Iterator[Path]:
    """A temporary neighbour of ``target`` that takes its place when the body succeeds."""
    target = target.absolute()
    remove_leftovers(target)
    check_place(target, overwrite, needed)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(target) as temporary:
            yield temporary
            if target.exists() and not overwrite:
                raise BundleError(f"{target} was made by another export meanwhile; it is kept.")
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise BundleError(f"the bundle could not be written to {target} ({reason}).") from None
