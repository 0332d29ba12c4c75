"""What the native engine takes a bundle's tensors to be; it measures its memory by this."""

from __future__ import annotations

from typing import Any

from edgechat.bundle import Manifest
from edgechat.errors import EngineError


def check_contract(manifest: Manifest) -> None:
    """EngineError unless the manifest's tensors are of the types and shapes documented in
    docs/architecture.md ("Graph contract" and "TensorRT") for its own dims."""
    dims, capacity, kv = manifest.dims, manifest.max_capacity, manifest.kv_dtype
    cache = (kv, (dims.num_kv_heads, capacity, dims.head_dim))
    new, kept = (
        (kv, (dims.num_kv_heads, slots, dims.head_dim)) for slots in ("tokens", "kept_slots")
    )
    # Types and shapes, but for the first dimension: it is the row.
    expected: dict[str, tuple[str, tuple[Any, ...]]] = {
        "input_ids": ("int64", ("tokens",)),
        "position_ids": ("int64", ("tokens",)),
        "cache_length": ("int64", ()),
        "output_index": ("int64", ("logit_positions", 1)),
        "targets": ("int64", ("targets",)),
        "logits": ("float32", ("logit_positions", dims.vocab_size)),
        "surprisal": ("float32", ("targets",)),
        "hidden": ("float32", ("tokens", dims.hidden_size)),
        "attention_mass": ("float32", (capacity,)),
        "kept": ("int64", ()),
        "shift": ("int64", ()),
    }
    for name in ("key", "value"):
        expected |= {f"past_{name}.{{i}}": cache, f"present_{name}.{{i}}": cache}
        expected |= {f"new_{name}.{{i}}": new, f"kept_{name}.{{i}}": kept}
    graphs = [graph for graph in (manifest.graph, manifest.compact) if graph is not None]
    for info in (info for graph in graphs for info in (*graph.inputs, *graph.outputs)):
        row = info.shape[:1] in ((1,), ("batch",), ("kept_slots",))
        if not row or expected.get(info.name) != (info.dtype, tuple(info.shape[1:])):
            raise EngineError(
                f"the bundle's {info.name!r} is not what a TensorRT bundle's is; export it again."
            )
