"""Models without an architecture here: optimum-onnx traces transformers' own code into a graph.

It wants an older transformers than ``edgechat verify``, so it has an environment of its own, in
which edgechat is installed as ``edgechat[export,optimum]``.
"""

from __future__ import annotations

import math
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import onnx

from edgechat.bundle import (
    SCHEMA,
    Abilities,
    Bundle,
    Dims,
    Graph,
    Manifest,
    TensorInfo,
    file_info,
    load_bundle,
    write_manifest,
)
from edgechat.errors import EdgechatError, SettingsError, SourceError, UnsupportedModelError
from edgechat.export.architectures import ARCHITECTURES
from edgechat.export.export import Progress, new_folder
from edgechat.export.prepare import TemplateCheck, read_text_files, tokens_of
from edgechat.export.size import OTHERS
from edgechat.export.sources import Source
from edgechat.export.sources.base import at_most, is_harmless
from edgechat.export.sources.hf_folder import HFFolder

FILES = ("model.onnx", "model.data")
CACHE = re.compile(r"(past_key_values|present)\.(\d+)\.(key|value)")
FED = {"input_ids", "attention_mask", "position_ids"}
TYPES = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64"}
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
MLP = ("intermediate_size", "ffn_dim", "n_inner")


def export_with_optimum(
    source: Source,
    output: Path,
    capacity: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    chat_template: str | None = None,
    check_template: TemplateCheck | None = None,
) -> Bundle:
    """Write an fp32 bundle of ``source``, a Hugging Face folder, to the folder ``output``.

    Its KV cache grows: the graph gives back past and new in new tensors, and turns keys itself,
    so that they cannot be moved; see ``runtime/growing_engine.py``. The arguments are those of
    ``export_model``. The folder appears complete or not at all. Raises UnsupportedModelError,
    SourceError, SettingsError or BundleError, and EdgechatError without optimum.
    """
    progress = progress or Progress()
    folder = _folder_of(source)
    text = read_text_files(source, chat_template, check_template)
    for note in text.template.notes:
        progress.say(note)
    transformers, export_onnx = _optimum()
    weights = 4 * sum(math.prod(source.shape(name)) for name in source.names())
    with new_folder(output, overwrite, OTHERS + 2 * weights) as target:
        progress.say("tracing the model with optimum")
        scratch = target / "optimum"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                config = _config(transformers, folder, source.config)
                context = _context(config, capacity)
                traced = _load(transformers, folder, config)
                export_onnx(traced, scratch, task="text-generation-with-past", do_validation=False)
            except EdgechatError:
                raise
            except Exception as error:  # of many libraries, without a common class
                reason = " ".join(str(error).split())[:300]
                kind = source.config.get("model_type")
                raise UnsupportedModelError(
                    f"optimum cannot export this {kind} model ({type(error).__name__}: {reason})."
                ) from None
        model = onnx.load(scratch / FILES[0])
        shutil.rmtree(scratch)
        graph = _contract(model)
        dims = _dims(config, graph, len(model.graph.output) // 2, context)
        tokens = tokens_of(dims, text)
        bytes_per_token = _bytes_read(model)
        onnx.save(model, target / FILES[0], save_as_external_data=True, location=FILES[1])
        text.write(target)
        progress.say("checksums")
        manifest = Manifest(
            schema=SCHEMA,
            name=source.name,
            architecture=config.model_type,
            source=source.kind,
            precision="fp32",
            kv_dtype="float32",
            max_capacity=capacity or context,
            weight_bytes_per_token=bytes_per_token,
            dims=dims,
            rotary=(),
            graph=graph,
            tokens=tokens,
            files={p.name: file_info(p) for p in sorted(target.iterdir())},
            abilities=Abilities(in_place=False, moves_keys=False),
        )
        write_manifest(target, manifest)
        load_bundle(target)  # what was written must load
    return load_bundle(output)


def _folder_of(source: Source) -> Path:
    """Where transformers can read the model."""
    model_type = source.config.get("model_type")
    if any(model_type in architecture.model_types for architecture in ARCHITECTURES):
        raise SettingsError(
            f"edgechat exports {model_type} models itself, to bundles that are faster and can do "
            "more; leave --exporter optimum out."
        )
    if not isinstance(source, HFFolder) or source.config.get("quantization_config"):
        raise SettingsError(
            "optimum exports Hugging Face folders of unquantised models; GGUF files, quantised "
            "checkpoints and --adapter are for the architectures that edgechat knows itself."
        )
    return source.folder


def _optimum() -> tuple[Any, Any]:
    """transformers, and optimum's export of a loaded model, both quiet."""
    try:
        import transformers
        from optimum.exporters.onnx import onnx_export_from_model
        from optimum.utils import logging
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise EdgechatError(
            f"--exporter optimum needs optimum-onnx ({reason}), in an environment of its own: "
            "python -m venv optimum, then optimum/bin/pip install 'edgechat[export,optimum]', then "
            "export with optimum/bin/edgechat."
        ) from None
    logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    return transformers, onnx_export_from_model


def _config(transformers: Any, folder: Path, values: dict[str, Any]) -> Any:
    """The config, with rotary settings where the older transformers looks for them: it would take
    its defaults for those that transformers 5 has written."""
    config = transformers.AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    rope = dict(values.get("rope_parameters") or {})
    if any(isinstance(value, dict) for value in rope.values()):
        raise UnsupportedModelError("optimum cannot export rotary settings that differ by layer.")
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            setattr(config, name, rope.pop(name))
    if rope.get("rope_type", "default") != "default":
        config.rope_scaling = rope
    return config


def _load(transformers: Any, folder: Path, config: Any) -> Any:
    """The model in float32, from safetensors alone, none of whose weights are made up."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        torch_dtype="float32",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    for kind in ("missing", "unexpected", "mismatched"):
        names = [str(name) for name in report[f"{kind}_keys"] if not is_harmless(str(name))]
        if names:
            raise SourceError(
                f"{folder} does not fit its config: weights are {kind} ({at_most(names)})."
            )
    model.config.use_cache = True
    return model.eval()


def _contract(model: onnx.ModelProto) -> Graph:
    """Inputs and outputs, those of layers as one; UnsupportedModelError for what the runtime
    could not feed."""
    sides = []
    for values in (model.graph.input, model.graph.output):
        found: dict[str, TensorInfo] = {}
        for value in values:
            kind = value.type.tensor_type
            shape = tuple(d.dim_param or d.dim_value for d in kind.shape.dim)
            name = CACHE.sub(r"\1.{i}.\3", value.name)
            info = TensorInfo(name, TYPES.get(kind.elem_type, "?"), shape)
            if found.setdefault(name, info) != info:
                raise _unfit(f"layers differ in {name}")
        sides.append(found)
    inputs, outputs = sides
    cache = [i for name, i in {**inputs, **outputs}.items() if "{i}" in name]
    kinds = {(i.dtype, len(i.shape), i.shape[1::2] if len(i.shape) == 4 else ()) for i in cache}
    sizes = cache[0].shape[1::2] if cache else ()
    if len(cache) != 4 or len(kinds) != 1 or not all(isinstance(size, int) for size in sizes):
        raise _unfit("its KV cache is not keys and values of [batch, heads, slots, head size]")
    if cache[0].dtype != "float32" or "logits" not in outputs:
        raise _unfit("it has no float32 cache and logits")
    others = {name for name in inputs if "{i}" not in name} - FED
    if others or not {"input_ids", "attention_mask"} <= inputs.keys():
        raise _unfit(f"it asks for {', '.join(sorted(others)) or 'no attention_mask'}")
    ordered = [
        tuple(sorted(side.values(), key=lambda info: ("{i}" in info.name, info.name)))
        for side in sides
    ]
    return Graph(FILES[0], "optimum", *ordered)


def _unfit(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"edgechat cannot run the graph that optimum made: {reason}.")


def _context(config: Any, capacity: int | None) -> int:
    """Positions the model has; SettingsError when they are unknown, or fewer than ``capacity``."""
    context = next((n for n in (getattr(config, c, None) for c in CONTEXT) if n), capacity)
    if context is None:
        raise SettingsError("the model's config names no context length; say it with --capacity.")
    if capacity is not None and capacity > context:
        raise SettingsError(
            f"capacity {capacity:,} is beyond the {context:,} positions the model has; choose less."
        )
    return int(context)


def _dims(config: Any, graph: Graph, layers: int, context: int) -> Dims:
    _, heads, _, head_dim = next(t for t in graph.inputs if "{i}" in t.name).shape
    hidden = config.hidden_size
    return Dims(
        vocab_size=next(t for t in graph.outputs if t.name == "logits").shape[-1],
        hidden_size=hidden,
        intermediate_size=next((n for n in (getattr(config, m, 0) for m in MLP) if n), 4 * hidden),
        num_layers=layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        context_length=context,
    )


def _bytes_read(model: onnx.ModelProto) -> int:
    """Bytes of weights a decode step reads: all but tables that rows are taken of."""
    tables, whole = set(), set()
    for node in model.graph.node:
        if node.op_type == "Gather":
            tables.add(node.input[0])
            whole.update(node.input[1:])
        else:
            whole.update(node.input)
    sizes = {t.name: 4 * math.prod(t.dims) for t in model.graph.initializer}
    return sum(size for name, size in sizes.items() if name in whole or name not in tables)
