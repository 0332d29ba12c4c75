"""Parses a bundle's graphs and builds engines of them, on the device or ahead of time.

``api`` is the module ``tensorrt``, or TensorRT-RTX's, which builds for other GPUs than the one
here and needs none. That one is a real NVIDIA parser and builder, but not JetPack's: it takes
graphs that older versions refuse (the export's allow-list refuses those).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgechat.bundle import Bundle, Graph
from edgechat.errors import EngineError
from edgechat.runtime.device_cache import MOST_KEPT, MOST_LOGITS, MOST_TOKENS
from edgechat.runtime.tensorrt.api import complaint, load_rtx, make_logger

RTX_GPUS = ("SM86", "SM89", "SM120")
# How TensorRT-RTX 1.7 writes fused kernels down in an engine.
FUSED_ATTENTION = re.compile(rb"function=\{ name=_gem[mv]_mha")
FUSED_WEIGHT = re.compile(rb"runtime_fusion=\{ name=__myl_CastMulFc")
Range = tuple[int, int, int]  # smallest, likeliest and largest size of a dimension


@dataclass(frozen=True)
class Options:
    """``gpu``: one of RTX_GPUS to build for it ahead of time, None for the GPU that is here.
    ``workspace``: most bytes a kernel may use besides inputs and outputs (None: TensorRT's
    default). ``timings``: what an earlier build measured. ``progress`` gets a phase's name, the
    steps done and their number; the build ends with EngineError when ``cancelled`` turns true.
    """

    gpu: str | None = None
    workspace: int | None = None
    timings: bytes = b""
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Built:
    """A serialised engine, what was measured on the way, and what became of the network.

    ``cache_updates`` counts layers that write a cache in place; ``fused_attentions`` and
    ``fused_weights`` (products that read int8 weights with float inputs and expand nothing) count
    kernels, all profiles together, as TensorRT-RTX names them.
    """

    engine: memoryview
    timings: bytes
    cache_updates: int
    fused_attentions: int
    fused_weights: int


def most_tokens(bundle: Bundle) -> int:
    """Most tokens a step can feed."""
    return min(MOST_TOKENS, bundle.manifest.max_capacity)


def most_kept(bundle: Bundle) -> int:
    """Most slots one run of the compact graph can move."""
    return min(MOST_KEPT, bundle.manifest.max_capacity)


def build_decoder_engine(api: Any, bundle: Bundle, options: Options) -> Built:
    """An engine of the decoder with two profiles: one token, and up to ``most_tokens``."""
    most = most_tokens(bundle)
    profiles = [_sizes(bundle, (1, 1, 1)), _sizes(bundle, (1, max(1, most // 4), most))]
    return build_engine(api, bundle, bundle.manifest.graph, profiles, options)


def build_compact_engine(api: Any, bundle: Bundle, options: Options) -> Built:
    """An engine of the compact graph, for up to ``most_kept`` slots."""
    graph = bundle.manifest.compact
    assert graph is not None  # check_buildable
    most = most_kept(bundle)
    return build_engine(api, bundle, graph, [{"kept_slots": (1, most, most)}], options)


def build_ahead(bundle: Bundle, gpu: str) -> tuple[Built, Built]:
    """Decoder and compact graph, built by TensorRT-RTX for ``gpu``, one of RTX_GPUS."""
    api, options = load_rtx(), Options(gpu=gpu)
    return build_decoder_engine(api, bundle, options), build_compact_engine(api, bundle, options)


def build_engine(
    api: Any, bundle: Bundle, graph: Graph, profiles: Sequence[dict[str, Range]], options: Options
) -> Built:
    """Parse ``graph`` and build it strongly typed.

    Each profile gives a range to every symbolic dimension of the contract. EngineError with
    TensorRT's first complaint.
    """
    if TYPE_CHECKING:
        import tensorrt as trt
    else:
        trt = api
    logger = make_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not bool(parser.parse_from_file(str(bundle.path(graph.file)))):
        errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise _refused("parse", graph.file, complaint(logger, errors))
    layers = bundle.manifest.dims.num_layers
    _check_names(network, graph, layers)
    config = builder.create_builder_config()
    if options.gpu is not None:
        _build_for(api, config, options.gpu)
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    timings = _timings(config, options) if options.gpu is None else None
    logger.errors.clear()  # an old timing cache is no fault of the network's
    config.progress_monitor = _monitor(trt, options)
    for sizes in profiles:
        profile = builder.create_optimization_profile()
        for info in graph.inputs:
            least, usual, most = (
                trt.Dims([_size(d, sizes, i) for d in info.shape]) for i in range(3)
            )
            for name in info.names(layers):
                try:
                    profile.set_shape(name, least, usual, most)
                except RuntimeError as error:
                    raise _refused("take sizes of", graph.file, f"{name}: {error}") from None
        if config.add_optimization_profile(profile) < 0:
            raise _refused("take sizes of", graph.file, complaint(logger))
    built: trt.IHostMemory | None = builder.build_serialized_network(network, config)
    if built is None:
        if options.cancelled():
            raise EngineError("the build was cancelled; what was built before it is kept.")
        raise _refused("build", graph.file, complaint(logger))
    kinds = [network.get_layer(i).type for i in range(network.num_layers)]
    update: Any = getattr(trt.LayerType, "KV_CACHE_UPDATE", None)  # absent before 10.15
    engine = memoryview(built)  # no copy: it is as large as the model
    fused = (len(kernel.findall(engine)) for kernel in (FUSED_ATTENTION, FUSED_WEIGHT))
    return Built(
        engine, bytes(timings.serialize()) if timings else b"", kinds.count(update), *fused
    )


def _check_names(network: Any, graph: Graph, layers: int) -> None:
    found = {network.get_input(i).name for i in range(network.num_inputs)}
    found |= {network.get_output(i).name for i in range(network.num_outputs)}
    odd = found.symmetric_difference(
        name for info in (*graph.inputs, *graph.outputs) for name in info.names(layers)
    )
    if odd:
        raise EngineError(
            f"{graph.file} does not keep the manifest's contract at {min(odd)!r}; export the "
            "bundle again."
        )


def _timings(config: Any, options: Options) -> Any:
    """The cache of measurements, new where the old one is of another version or GPU."""
    timings = config.create_timing_cache(options.timings)
    if timings is None or not config.set_timing_cache(timings, False):
        timings = config.create_timing_cache(b"")
        config.set_timing_cache(timings, False)
    return timings


def _build_for(api: Any, config: Any, gpu: str) -> None:
    """TensorRT-RTX only: the GPU to build for, ahead of time."""
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(api.ComputeCapability, gpu), 0)


def _size(dimension: int | str, sizes: dict[str, Range], which: int) -> int:
    return sizes[dimension][which] if isinstance(dimension, str) else dimension


def _sizes(bundle: Bundle, tokens: Range) -> dict[str, Range]:
    """One row; surprisal is asked of all tokens but the first, logits mostly of the last."""
    fewest, likeliest, most = (n - 1 for n in tokens)
    return {
        "batch": (1, 1, 1),
        "tokens": tokens,
        "targets": (fewest, likeliest, most),
        "logit_positions": (1, 1, min(MOST_LOGITS, tokens[2])),
    }


def _monitor(api: Any, options: Options) -> Any:
    class Monitor(api.IProgressMonitor):  # type: ignore[misc]  # a class of whichever module it is
        """Tells of the outermost phases; TensorRT calls it from threads of its own."""

        def __init__(self) -> None:
            super().__init__()
            self._outer: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            if parent is None:
                self._outer[phase] = steps
                options.progress(phase, 0, steps)

        def phase_finish(self, phase: str) -> None:
            if phase in self._outer:
                steps = self._outer.pop(phase)
                options.progress(phase, steps, steps)

        def step_complete(self, phase: str, step: int) -> bool:
            if phase in self._outer:
                options.progress(phase, step + 1, self._outer[phase])
            return not options.cancelled()

    return Monitor()


def _refused(verb: str, file: str, reason: str) -> EngineError:
    return EngineError(f"TensorRT does not {verb} {file} ({reason}); export the bundle again.")
