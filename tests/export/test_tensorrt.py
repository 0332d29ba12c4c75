"""The graphs TensorRT is given, run by ONNX Runtime: they compute what transformers computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from edgechat.bundle import Bundle
from edgechat.export import export_model, open_source
from edgechat.graph_runner import GraphRunner
from edgechat.runtime.onnx_engine import OnnxEngine

TARGETS = ("jetson-jp7", "jetson-jp6")
IDS = np.random.default_rng(1).integers(3, 259, size=150)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one kv head, head_dim not hidden/heads": {"num_key_value_heads": 1, "head_dim": 32},
    "no gqa": {"num_key_value_heads": 4},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def export(folder: Path, target: str, tmp_path: Path, precision: str = "fp32") -> Bundle:
    source = open_source(str(folder), print)
    return export_model(source, tmp_path / f"{target}-{precision}", precision, target=target)


class Reference:
    """transformers over a cache whose rows can be taken out and rotated."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.cache = DynamicCache(config=self.model.config)

    def feed(self, ids: np.ndarray, first: int) -> np.ndarray:
        positions = torch.arange(first, first + len(ids))[None]
        with torch.no_grad():
            out = self.model(
                torch.from_numpy(ids)[None], past_key_values=self.cache, position_ids=positions
            )
        return out.logits[0].numpy()

    def keep(self, kept: np.ndarray, shift: np.ndarray) -> None:
        """Keep these rows; their keys move ``shift`` positions to the front."""
        angles = shift[:, None] * self.model.model.rotary_emb.inv_freq.numpy().astype(np.float64)
        turn = torch.from_numpy(np.exp(-1j * angles))
        for layer in self.cache.layers:
            keys, half = layer.keys[:, :, kept], layer.keys.shape[-1] // 2
            turned = torch.complex(keys[..., :half].double(), keys[..., half:].double()) * turn
            layer.keys = torch.cat([turned.real, turned.imag], dim=-1).float()
            layer.values = layer.values[:, :, kept]


def agree(actual: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(actual - expected).max() < 1e-3
    assert (actual.argmax(1) == expected.argmax(1)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_and_decode_equal_transformers(
    variant: str, target: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder(seed=7, **VARIANTS[variant])
    runner = GraphRunner(export(folder, target, tmp_path))
    expected, done = Reference(folder).feed(IDS, 0), 0
    for size in (1, 40, 7, 1, 101):
        chunk = slice(done, done + size)
        agree(runner.step(IDS[chunk])["logits"], expected[chunk])
        done += size
    runner.length -= 1  # the last slot is fed again, and only its logits are asked for
    agree(runner.step(IDS[-1:], all_logits=False)["logits"], expected[-1:])


@pytest.mark.parametrize("target", TARGETS)
def test_missing_rows_and_compaction_equal_transformers(
    target: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Rows leave the middle, true positions stay; later the cache is compacted."""
    folder = make_folder(seed=7, num_key_value_heads=1)
    runner, reference = GraphRunner(export(folder, target, tmp_path)), Reference(folder)
    agree(runner.step(IDS[:60])["logits"], reference.feed(IDS[:60], 0))
    kept = np.concatenate([np.arange(4), np.arange(20, 60)])
    runner.drop(slice(4, 20))
    reference.keep(kept, np.zeros_like(kept))
    for chunk in (slice(60, 61), slice(61, 90)):
        positions = np.arange(chunk.start, chunk.stop)
        actual = runner.step(IDS[chunk], positions)["logits"]
        agree(actual, reference.feed(IDS[chunk], chunk.start))
    kept = np.concatenate([np.arange(2), np.arange(30, runner.length)])
    positions = np.concatenate([np.arange(4), np.arange(20, 90)])[kept]
    shift = positions - np.arange(len(kept))
    runner.compact(kept, shift)
    reference.keep(kept, shift)
    for chunk in (slice(90, 120), slice(120, 121), slice(121, 150)):
        length = runner.length
        agree(runner.step(IDS[chunk])["logits"], reference.feed(IDS[chunk], length))


@pytest.mark.parametrize("target", TARGETS)
def test_signals_equal_those_of_the_cpu(target: str, tiny_folder: Path, tmp_path: Path) -> None:
    engine = OnnxEngine(export(tiny_folder, "cpu", tmp_path), capacity=256, importance=True)
    runner = GraphRunner(export(tiny_folder, target, tmp_path))
    for chunk in (slice(0, 100), slice(100, 101), slice(101, 150)):
        lengths = np.array([chunk.start], dtype=np.int32)
        engine.step(IDS[None, chunk], lengths)
        outputs = runner.step(IDS[chunk])
        assert engine.signals is not None
        for name, expected in vars(engine.signals).items():
            assert outputs[name].shape == expected[0].shape
            assert np.abs(outputs[name] - expected[0]).max(initial=0) < 1e-3, name


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_different_length_take_a_step_together(
    target: str, tiny_folder: Path, tmp_path: Path
) -> None:
    bundle = export(tiny_folder, target, tmp_path)
    rows = []
    for count in (30, 12):
        runner = GraphRunner(bundle)
        runner.step(IDS[:count])
        rows.append(runner)
    feeds = {
        "input_ids": IDS[[[60, 61], [70, 71]]],
        "position_ids": np.array([[30, 31], [12, 13]]),
        "cache_length": np.array([30, 12]),
        "output_index": np.array([[[1]]] * 2),
        "targets": IDS[[[61], [71]]],
    }
    for layer in range(3):
        feeds[f"past_key.{layer}"] = np.stack([r.keys[layer] for r in rows])
        feeds[f"past_value.{layer}"] = np.stack([r.values[layer] for r in rows])
    together = ort.InferenceSession(str(bundle.path("model.onnx"))).run(["logits"], feeds)[0]
    for row, (runner, chunk) in enumerate(zip(rows, (IDS[60:62], IDS[70:72]), strict=True)):
        alone = runner.step(chunk, all_logits=False)["logits"]
        assert np.abs(together[row] - alone).max() < 1e-4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("precision", "error"), [("fp16", 0.01), ("int8-weight", 0.05), ("int8", 0.1)]
)
def test_precisions_stay_close(
    precision: str, error: float, target: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder(seed=11, initializer_range=0.15)
    exact = GraphRunner(export(folder, target, tmp_path)).step(IDS)["logits"]
    bundle = export(folder, target, tmp_path, precision)
    runner = GraphRunner(bundle)
    assert np.abs(runner.step(IDS)["logits"] - exact).mean() < error * exact.std()
    assert runner.keys.dtype == np.float16
    assert bundle.manifest.kv_bytes_per_slot == runner.keys[:, :, 0].nbytes * 2
    assert bool(bundle.manifest.quantization) == precision.startswith("int8")


def test_hundred_compactions_of_float16_keys_drift_by_a_percent(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """What rotating in float32 is for: only the rounding between compactions is left."""
    runner = GraphRunner(export(tiny_folder, "jetson-jp7", tmp_path, "fp16"))
    runner.step(IDS[:120])
    before = runner.keys[:, :, :120].astype(np.float32)
    for _ in range(50):
        runner.compact(np.arange(120), np.full(120, 255))
        runner.compact(np.arange(120), np.full(120, 1))
    angles = 50 * 256 * np.asarray(runner.bundle.manifest.rotary[0].inv_freq)
    first, second = np.split(before, 2, axis=-1)
    turned = (first + 1j * second) * np.exp(-1j * angles)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    drift = np.abs(runner.keys[:, :, :120] - expected).mean() / np.abs(expected).mean()
    assert drift < 0.012


def test_without_importance_only_logits_and_cache_are_left(
    tiny_folder: Path, tmp_path: Path
) -> None:
    source = open_source(str(tiny_folder), print)
    bundle = export_model(source, tmp_path / "b", "fp32", target="jetson-jp6", importance=False)
    assert set(GraphRunner(bundle).step(IDS[:5])) == {"logits"}
    assert [t.name for t in bundle.manifest.graph.outputs] == [
        "logits",
        "new_key.{i}",
        "new_value.{i}",
    ]


def edgechat(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from edgechat.cli import main; main()", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_the_commands_make_show_and_refuse_to_run_a_bundle(
    tiny_folder: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "b"
    made = edgechat("export", tiny_folder, "--target", "jetson-jp7", "-o", bundle)
    assert "perplexity" in made.stderr
    assert "edgechat run" not in made.stderr
    shown = edgechat("inspect", bundle).stdout
    assert all(text in shown for text in ("tensorrt_10_15", "present_key.{i}", "float16"))
    refused = edgechat("run", bundle, "--prompt", "Hi", code=1).stderr
    assert "TensorRT cannot be loaded" in refused or "'tensorrt' found here is empty" in refused
    assert "export it with --target cpu" in refused
    assert len(refused.strip().splitlines()) == 1
