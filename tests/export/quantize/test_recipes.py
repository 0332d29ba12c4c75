"""Recipes are exact where they claim to be, and close where they round."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgechat.bundle import Bundle, load_bundle
from edgechat.errors import SettingsError
from edgechat.export import export_model, open_source
from edgechat.export.architectures import find_architecture
from edgechat.export.decoder import build_decoder
from edgechat.export.dialects.ort_cpu import OrtCpu
from edgechat.export.graph import GraphBuilder
from edgechat.export.quantize.activations import Calibrator, perplexity
from edgechat.export.quantize.blockwise import quantize_blocks
from edgechat.export.quantize.calibration import WINDOW, calibration_text, windows
from edgechat.export.quantize.rotate import RotatedWeights, hadamard, orthogonal
from edgechat.export.quantize.rounding import (
    absmax_scales,
    round_to_nearest,
    round_with_feedback,
)
from edgechat.export.quantize.w8a8 import W8A8Weights
from edgechat.export.sources.base import read_checked
from edgechat.export.spec import DecoderSpec, Int8Linear, ModelWeights
from edgechat.runtime.onnx_engine import OnnxEngine

IDS = np.random.default_rng(5).integers(3, 259, size=(1, 100))


def load(folder: Path) -> tuple[DecoderSpec, ModelWeights]:
    source = open_source(str(folder), print)
    architecture = find_architecture(source.config)
    spec = architecture.spec(source.config, None)
    return spec, architecture.weights(spec, partial(read_checked, source), source.config)


def logits(bundle: Bundle) -> np.ndarray:
    engine = OnnxEngine(bundle, capacity=128)
    return engine.step(IDS, np.zeros(1, dtype=np.int32), all_logits=True)[0].copy()


@pytest.mark.parametrize("size", [1, 6, 64, 96, 576])
def test_rotations_are_orthogonal(size: int) -> None:
    r = orthogonal(size, np.random.default_rng(0))
    assert np.abs(r @ r.T - np.eye(size)).max() < 1e-12


def test_hadamard_is_symmetric_and_orthonormal() -> None:
    h = hadamard(64)
    assert np.abs(h @ h - np.eye(64)).max() < 1e-12
    assert (h == h.T).all()


@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}])
def test_folding_and_rotating_leaves_fp32_logits_unchanged(
    config: dict[str, bool], make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Exported with rotated weights, in fp32, through ONNX Runtime."""
    folder = make_folder(seed=2, **config)
    plain = export_model(open_source(str(folder), print), tmp_path / "plain", "fp32")
    spec, weights = load(folder)
    untied = DecoderSpec(**{**vars(spec), "tied_embeddings": False})
    rotated = tmp_path / "plain" / "rotated.onnx"
    with GraphBuilder(rotated, tmp_path / "plain" / "rotated.data", OrtCpu.opsets) as graph:
        dialect = OrtCpu(graph, untied, blocks=False, max_capacity=256)
        build_decoder(untied, RotatedWeights(weights, spec), dialect, lambda done: None)
        graph.save()
    expected = logits(plain)
    (tmp_path / "plain" / "model.onnx").write_bytes(rotated.read_bytes())
    assert np.abs(logits(plain) - expected).max() < 1e-3


def test_smoothing_and_mixing_leave_the_layer_unchanged(make_folder: Callable[..., Path]) -> None:
    """Without rounding, what W8A8 hands over computes what the layer computed."""
    spec, weights = load(make_folder(seed=2))
    calibrator = Calibrator(weights, spec, IDS)
    quantised = W8A8Weights(weights, spec, calibrator)
    quantised.embedding()
    layer, plain = quantised.layer(0), weights.layer(0)
    assert isinstance(layer.down, Int8Linear) and isinstance(layer.gate_up, Int8Linear)
    codes = layer.down.codes * layer.down.scales[:, None]
    unmixed = (codes.reshape(-1, layer.down.hadamard) @ hadamard(layer.down.hadamard)).reshape(
        codes.shape
    )
    up = (layer.gate_up.codes * layer.gate_up.scales[:, None])[spec.intermediate_size :]
    combined = unmixed @ up  # smoothing factors cancel between up rows and down columns
    expected = plain.down.weight @ plain.gate_up.weight[spec.intermediate_size :]
    assert np.abs(combined - expected).mean() < 0.02 * np.abs(expected).mean() + 1e-6


def test_error_feedback_beats_rounding_to_nearest() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((40, 96)).astype(np.float32)
    x = random.standard_normal((500, 96)) @ random.standard_normal((96, 96))
    x = x.astype(np.float32)
    scales = absmax_scales(weight)

    def error(codes: np.ndarray) -> float:
        return float(np.square(x @ (codes * scales[:, None] - weight).T).mean())

    nearest = error(round_to_nearest(weight, scales))
    assert error(round_with_feedback(weight, scales, x)) < 0.6 * nearest


def test_error_feedback_is_the_papers_whatever_the_blocks() -> None:
    """GPTQ as the paper has it: the inverse Hessian, column by column, each error spread."""
    random = np.random.default_rng(3)
    weight = random.standard_normal((7, 300)).astype(np.float32)
    x = (random.standard_normal((900, 300)) @ random.standard_normal((300, 300))).astype("f4")
    scales = absmax_scales(weight)
    hessian = (x.T @ x).astype(np.float64)
    order = np.argsort(np.diagonal(hessian), kind="stable")[::-1]
    hessian += 0.01 * np.diagonal(hessian).mean() * np.eye(300)
    inverse = np.linalg.inv(hessian[np.ix_(order, order)])
    left, expected = weight[:, order].astype(np.float64), np.empty((7, 300))
    for i in range(300):
        expected[:, i] = np.clip(np.rint(left[:, i] / scales), -127, 127)
        error = (left[:, i] - expected[:, i] * scales) / inverse[i, i]
        left[:, i:] -= np.outer(error, inverse[i, i:])
        inverse[i:, i:] -= np.outer(inverse[i:, i], inverse[i, i:]) / inverse[i, i]
    codes = round_with_feedback(weight, scales, x)[:, order]
    assert (codes == expected).mean() > 0.99
    assert np.abs(codes - expected).max() <= 1


def test_error_feedback_survives_inputs_that_never_occur() -> None:
    weight = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    scales = absmax_scales(weight)
    for x in (np.zeros((4, 16), np.float32), np.eye(1, 16, dtype=np.float32)):
        codes = round_with_feedback(weight, scales, x)
        assert np.abs(codes * scales[:, None] - weight).max() <= scales.max()


@pytest.mark.parametrize("shape", [(5, 64), (3, 40), (2, 1)])
def test_blocks_round_to_half_a_step(shape: tuple[int, int]) -> None:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    codes, scales = quantize_blocks(weight, 32)
    back = ((codes.astype(np.float32) - 128) * scales[..., None]).reshape(shape[0], -1)
    assert np.abs(back[:, : shape[1]] - weight).max() <= scales.max() / 2 + 1e-6


def test_reference_equals_the_graph(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_folder(
        seed=8, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    )
    spec, weights = load(folder)
    bundle = export_model(open_source(str(folder), print), tmp_path / "b", "fp32")
    z = logits(bundle)[:-1].astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), IDS[0, 1:]]
    assert perplexity(weights, spec, IDS[0]) == pytest.approx(np.exp(losses.mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("precision", "kv", "error"),
    [
        ("int8", "fp32", 0.12),
        ("int8-weight", "fp32", 0.05),
        ("fp32", "int8", 0.05),
        ("int8", "int8", 0.15),
    ],
)
def test_precisions_stay_close_and_say_what_they_did(
    precision: str, kv: str, error: float, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder(seed=11, initializer_range=0.15)
    source = open_source(str(folder), print)
    exact = logits(export_model(source, tmp_path / "fp32", "fp32"))
    bundle = export_model(source, tmp_path / "b", precision, kv=kv, measure=lambda b, ids: 7.0)
    assert np.abs(logits(bundle) - exact).mean() < error * exact.std()
    report = load_bundle(bundle.folder).manifest.quantization
    assert report["steps"]
    assert report["perplexity"] == 7.0
    assert report["fp32_perplexity"] > 1
    again = export_model(source, tmp_path / "again", precision, kv=kv)
    assert again.manifest.files == bundle.manifest.files  # deterministic


def test_calibration_files(tiny_folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("word " * 2000)
    assert windows(tokenizer, calibration_text(plain)).shape == (16, WINDOW)
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    lines.write_text(json.dumps(chat) + "\n" + json.dumps({"id": "x", "turns": ["A", "B"]}) + "\n")
    assert calibration_text(lines) == "Hi\nHo\n\nA\nB"
    assert len(calibration_text(None)) > 5000


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{"])
def test_bad_calibration_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(content)
    with pytest.raises(SettingsError):
        calibration_text(path)
    with pytest.raises(SettingsError):
        calibration_text(tmp_path / "missing.txt")
