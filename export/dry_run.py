"""What an export would make, and what stands in its way, without reading a tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edgechat.bundle import kv_bytes_per_slot
from edgechat.errors import EdgechatError
from edgechat.export.export import KV_TYPES, check_place, dims_of
from edgechat.export.prepare import TemplateCheck, read_model, read_text_files, tokens_of
from edgechat.export.quantize.recipe import Recipe
from edgechat.export.size import OTHERS, data_bytes
from edgechat.export.sources import Source
from edgechat.export.targets import check_options

T = TypeVar("T")


@dataclass
class Forecast:
    """``problems`` are sentences that say why there can be no such bundle; what could not be
    found out because of one is None. Sizes are in bytes, estimated a little above the truth."""

    name: str
    source: str
    target: str
    precision: str
    kv_dtype: str
    adapter: str | None = None
    architecture: str | None = None
    dims: dict[str, int] | None = None
    parameters: int | None = None
    windowed_layers: int | None = None
    capacity: int | None = None
    bundle_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    tokenizer_size: int | None = None
    bos: int | None = None
    eos: list[int] | None = None
    chat_template: str | None = None
    steps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def dry_run(
    source: Source,
    output: Path,
    precision: str = "int8",
    kv: str | None = None,
    capacity: int | None = None,
    calibration: Path | None = None,
    overwrite: bool = False,
    importance: bool = True,
    target: str = "cpu",
    chat_template: str | None = None,
    check_template: TemplateCheck | None = None,
) -> Forecast:
    """What ``export_model`` with the same arguments would come to. Raises SettingsError."""
    backend = check_options(precision, kv, capacity, target)
    kv = backend.kv(precision, kv)
    found = Forecast(source.name, source.kind, target, precision, KV_TYPES[kv])
    found.adapter = source.adapter.name if source.adapter else None

    def attempt(step: Callable[[], T]) -> T | None:
        try:
            return step()
        except EdgechatError as error:
            found.problems.append(str(error))
            return None

    model = attempt(lambda: read_model(source, backend, capacity))
    text = attempt(lambda: read_text_files(source, chat_template, check_template))
    needed = 0
    if model:
        dims = dims_of(model.spec)
        found.architecture, found.dims = model.spec.architecture, dataclasses.asdict(dims)
        found.parameters = sum(map(math.prod, model.weights.shapes.values()))
        found.windowed_layers = sum(window > 0 for window in model.spec.windows)
        found.capacity = model.capacity
        found.kv_bytes_per_token = kv_bytes_per_slot(dims, found.kv_dtype)
        found.notes += model.notes
    if text:
        found.chat_template = text.template.name
        found.bos, found.eos = text.files.bos_id, text.files.eos_ids
        found.tokenizer_size = text.tokenizer.get_vocab_size()
        found.notes += text.template.notes
    if model and text:
        attempt(lambda: tokens_of(model.spec, text))
        static = backend.is_tensorrt
        bos = text.files.bos_id if text.files.adds_bos else None
        arguments = (precision, kv, text.tokenizer, bos, calibration, static)
        recipe = attempt(lambda: Recipe(model.weights, model.spec, *arguments))
        if recipe:
            size = data_bytes(recipe.spec, precision, model.capacity, importance, backend.on_gpu)
            needed = found.bundle_bytes = OTHERS + size
            report: dict[str, Any] = recipe.report()
            found.steps = report.get("steps", [])
    attempt(lambda: check_place(output.absolute(), overwrite, needed))
    return found
