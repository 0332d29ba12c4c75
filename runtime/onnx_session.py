"""Opens ONNX Runtime sessions, and turns what can go wrong into one sentence."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, field
from typing import Any

import onnxruntime as ort

from edgechat.bundle import Bundle, Graph, Manifest
from edgechat.errors import EngineError

PAST = "past_sequence_length"
GROWING = (PAST, f"{PAST} + sequence_length")  # as optimum calls a cache's slots
ORT_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
}


@dataclass(frozen=True)
class Provider:
    """Where ONNX Runtime computes: its name for it, the ``device`` of addresses that are bound,
    its options."""

    name: str
    device: str
    options: dict[str, str] = field(default_factory=dict)


CPU = Provider("CPUExecutionProvider", "cpu")
# Memory is taken as it is needed, not twice as much each time.
CUDA = Provider("CUDAExecutionProvider", "cuda", {"arena_extend_strategy": "kSameAsRequested"})
FELL_BACK = "fallback to CPU EP has been explicitly disabled"


def check_provider(provider: Provider) -> None:
    """EngineError unless this build of ONNX Runtime has ``provider``."""
    if provider.name not in ort.get_available_providers():
        raise EngineError(
            f"ONNX Runtime {ort.__version__} has no {provider.name}: pip uninstall onnxruntime, "
            "then pip install 'edgechat[cuda]' (on a Jetson the onnxruntime-gpu of its JetPack)."
        )


def open_session(
    bundle: Bundle, graph: Graph, provider: Provider, threads: int = 1, fuse: bool = False
) -> Any:
    """A session of one of the bundle's graphs, all of whose nodes run on ``provider``.

    ``threads`` are the CPU's; ``fuse``: ONNX Runtime optimises the graph first. Raises EngineError
    when ONNX Runtime cannot load the graph, a node would run elsewhere, or the graph is not what
    the manifest says.
    """
    # The tiled attention ONNX Runtime prefers on CPU is up to a quarter slower at these sizes.
    os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors come as exceptions
    # The export already spells fused nodes: optimising again only costs load time.
    if not fuse:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if provider.name != CPU.name:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        preload_libraries()
    try:
        session = ort.InferenceSession(
            str(bundle.path(graph.file)),
            sess_options=options,
            providers=[(provider.name, provider.options)],
            enable_fallback=0,
        )
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        raise EngineError(_load_failure(provider, first_line(error))) from None
    if session.get_providers()[0] != provider.name:
        raise EngineError(_load_failure(provider, FELL_BACK))
    _check_contract(bundle.manifest, graph, session)
    return session


def run(session: Any, binding: Any) -> None:
    """Run with what is bound, and wait for it."""
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # as above
        raise EngineError(f"ONNX Runtime failed in a step ({first_line(error)}).") from None


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]


def _load_failure(provider: Provider, reason: str) -> str:
    if FELL_BACK in reason:
        return (
            f"the {provider.name} of ONNX Runtime {ort.__version__} does not load: the CUDA or "
            "cuDNN libraries it needs are missing (pip install 'onnxruntime-gpu[cuda,cudnn]'; on a "
            "Jetson they are JetPack's); edgechat doctor tells which."
        )
    return (
        f"ONNX Runtime {ort.__version__} cannot load the bundle's graph; update it with "
        f"pip install -U onnxruntime, or export the bundle again ({reason})."
    )


def preload_libraries() -> None:
    """Load the CUDA libraries that pip installed, which nothing else finds; it prints what it does
    not find, but those may be where the system looks."""
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls(directory="")
    ort.set_default_logger_severity(4)


def _check_contract(manifest: Manifest, graph: Graph, session: Any) -> None:
    """EngineError unless the graph has exactly the tensors the manifest promises."""
    dims = manifest.dims
    if graph is manifest.graph:
        logits = [x for x in session.get_outputs() if x.name == "logits"]
        if not logits or logits[0].shape[-1] != dims.vocab_size:
            raise EngineError(
                f"the graph's logits are not the {dims.vocab_size:,} of the manifest's contract; "
                "export the bundle again."
            )
    sizes = [("batch", "capacity"), (1, "capacity"), (1, "kept_slots")]
    sizes += [("batch_size", length) for length in GROWING]
    caches = [[manifest.kv_dtype, b, dims.num_kv_heads, c, dims.head_dim] for b, c in sizes]
    for promised, found in (
        (graph.inputs, session.get_inputs()),
        (graph.outputs, session.get_outputs()),
    ):
        expected = {}
        for info in promised:
            kind = [info.dtype, *info.shape]
            if "{i}" not in info.name or kind in caches:
                expected.update(dict.fromkeys(info.names(dims.num_layers), kind))
        actual = {t.name: [ORT_TYPES.get(t.type, t.type), *t.shape] for t in found}
        if expected != actual:
            odd = min(n for n in expected | actual if expected.get(n) != actual.get(n))
            raise EngineError(
                f"the graph does not keep the manifest's contract at {odd!r}; export the bundle "
                "again."
            )
