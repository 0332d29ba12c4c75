"""Runs a GPU bundle's own graphs on ONNX Runtime's CPU: slow, for checking and measuring.

What the GPU will be given is compared with the model before there is a device to run it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgechat.bundle import Bundle
from edgechat.errors import EngineError

Ids = NDArray[np.int64]
CHUNK = 256  # tokens a step while measuring


class GraphRunner:
    """One row over a cache of the bundle's capacity, ``keys`` and ``values`` [layers, H_kv, C, D].

    Raises EngineError when ONNX Runtime cannot load the graphs.
    """

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        manifest, self.bundle = bundle.manifest, bundle
        dims, self._threads = manifest.dims, threads
        self._step = self._session(manifest.graph.file)
        compact = manifest.compact
        self._compact = None if compact is None else self._session(compact.file)
        self._by_slot = manifest.graph.dialect == "ort_cuda"  # which knows no other positions
        self._in_place = any(t.name == "present_key.{i}" for t in manifest.graph.outputs)
        shape = (dims.num_layers, dims.num_kv_heads, manifest.max_capacity, dims.head_dim)
        self.keys, self.values = (np.zeros(shape, dtype=manifest.kv_dtype) for _ in range(2))
        self.length = 0

    def step(
        self, tokens: Ids, positions: Ids | None = None, all_logits: bool = True
    ) -> dict[str, NDArray[Any]]:
        """Feed ``tokens`` [S], by default at the positions their slots have (CUDA bundles know
        no others).

        Returns the outputs without the cache and without the row: logits [S, V] (or [1, V] of the
        last token) and, where the bundle has them, surprisal [S - 1], hidden [S, E] and
        attention_mass [C].
        """
        count = len(tokens)
        feeds: dict[str, NDArray[Any]] = {"input_ids": tokens[None]}
        if self._by_slot:
            feeds["seqlens_k"] = np.array([self.length + count - 1], dtype=np.int32)
            feeds["total_sequence_length"] = np.array(self.length + count, dtype=np.int32)
        else:
            feeds["position_ids"] = self.length + np.arange(count)[None]
            feeds["cache_length"] = np.array([self.length])
        if positions is not None:
            feeds["position_ids"] = positions[None]
        index = np.arange(count) if all_logits else np.array([count - 1])
        if self.bundle.manifest.has_importance:
            feeds["targets"] = tokens[None, 1:]
            if self._by_slot:
                index = np.concatenate([np.arange(count - 1), index])
        feeds["output_index"] = index[None, :, None]
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            feeds[f"past_key.{layer}"], feeds[f"past_value.{layer}"] = keys[None], values[None]
        outputs = self._run(self._step, feeds)
        prefix = "present" if self._in_place else "new"
        rows = slice(None) if self._in_place else slice(self.length, self.length + count)
        for layer in range(len(self.keys)):
            self.keys[layer, :, rows] = outputs.pop(f"{prefix}_key.{layer}")[0]
            self.values[layer, :, rows] = outputs.pop(f"{prefix}_value.{layer}")[0]
        self.length += count
        return {name: value[0] for name, value in outputs.items()}

    def drop(self, slots: slice) -> None:
        """Forget ``slots``; those behind move up and keep the positions their keys have."""
        for cache in (self.keys, self.values):
            kept = np.delete(cache[:, :, : self.length], slots, axis=2)
            cache[:, :, : kept.shape[2]] = kept
        self.length = kept.shape[2]

    def compact(self, kept: Ids, shift: Ids) -> None:
        """Move the slots ``kept`` (ascending) to 0, 1, 2, …, and rotate their keys ``shift``
        positions to the front."""
        assert self._compact is not None
        feeds: dict[str, NDArray[Any]] = {"kept": kept, "shift": shift}
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            feeds[f"past_key.{layer}"], feeds[f"past_value.{layer}"] = keys[None], values[None]
        outputs = self._run(self._compact, feeds)
        self.length = len(kept)
        for layer in range(len(self.keys)):
            self.keys[layer, :, : self.length] = outputs[f"kept_key.{layer}"][0]
            self.values[layer, :, : self.length] = outputs[f"kept_value.{layer}"][0]

    def perplexity(self, ids: Ids, context: int | None = None) -> float:
        """Of ``ids`` [n], read in chunks from an empty cache, or from one for every ``context``
        of them."""
        size = context or len(ids)
        losses = [self._losses(ids[start : start + size]) for start in range(0, len(ids), size)]
        mean = float(np.concatenate(losses).mean())
        return math.exp(mean) if mean < 700 else math.inf

    def _losses(self, ids: Ids) -> NDArray[np.float64]:
        """Nats of each of ``ids`` but the first, from an empty cache."""
        self.length, losses = 0, []
        for start in range(0, len(ids), CHUNK):
            logits = self.step(ids[start : start + CHUNK])["logits"].astype(np.float64)
            targets = ids[start + 1 : start + CHUNK + 1]
            logits = logits[: len(targets)] - logits[: len(targets)].max(axis=1, keepdims=True)
            total = np.log(np.exp(logits).sum(axis=1))
            losses.append(total - logits[np.arange(len(targets)), targets])
        return np.concatenate(losses)

    def _session(self, name: str) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self._threads, 3
        try:
            return ort.InferenceSession(
                str(self.bundle.path(name)), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise EngineError(
                f"ONNX Runtime {ort.__version__} cannot load {name} ({_first_line(error)}); update "
                "it with pip install -U onnxruntime, or export the bundle again."
            ) from None

    @staticmethod
    def _run(session: Any, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        names = [output.name for output in session.get_outputs()]
        try:
            return dict(zip(names, session.run(names, feeds), strict=True))
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime failed in a step ({_first_line(error)}).") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
