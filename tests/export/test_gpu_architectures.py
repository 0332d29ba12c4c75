"""The graphs GPUs are given, for every architecture: they compute what the CPU bundle does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import transformers
from tiny_models import MODELS, divergence, random_ids, write_model

from edgechat.export import export_model, open_source
from edgechat.export.architectures import find_architecture
from edgechat.graph_runner import GraphRunner
from edgechat.runtime.onnx_engine import OnnxEngine

TARGETS = ("jetson-jp7", "jetson-jp6")
IDS = random_ids(80)
# nats of KL divergence; models that share no weights: 0.7 to 2.4
LIMITS = {"fp16": 1e-5, "int8-weight": 0.003, "int8": 0.006}


@pytest.mark.parametrize("name", MODELS)
def test_float32_twins_equal_the_cpu_bundle(name: str, tmp_path: Path) -> None:
    """Prefill beyond a window, decode, a compaction with a gap, chunks behind it; the cached keys
    of every layer, surprisal, hidden state and attention mass too."""
    write_model(tmp_path, name)
    source = open_source(str(tmp_path), print)
    engine = OnnxEngine(export_model(source, tmp_path / "cpu", "fp32"), 256, importance=True)
    runners = [
        GraphRunner(export_model(source, tmp_path / target, "fp32", target=target))
        for target in (*TARGETS, "cuda")
    ]
    kept = np.array([*range(4), *range(21, 52)])
    length, compaction = 0, 52
    for chunk in (slice(0, 50), slice(50, 51), slice(51, 52), slice(52, 53), slice(53, 80)):
        if chunk.start == compaction:
            engine.compact(0, kept)
            for runner in runners:
                runner.compact(kept, kept - np.arange(len(kept)))
            length = len(kept)
        lengths = np.array([length], dtype=np.int32)
        expected = engine.step(IDS[None, chunk], lengths, all_logits=True)[0]
        length += chunk.stop - chunk.start
        assert engine.signals is not None
        keys = engine.read(0, 0, length)[:, 0]
        for runner in runners:
            outputs = runner.step(IDS[chunk])
            assert np.abs(outputs["logits"] - expected).max() < 1e-3
            assert (outputs["logits"].argmax(1) == expected.argmax(1)).all()
            assert np.abs(runner.keys[:, :, :length] - keys).max() < 1e-3
            for signal, value in vars(engine.signals).items():
                largest = 1e-3 * max(1.0, float(np.abs(value).max(initial=0)) / 10)
                assert np.abs(outputs[signal] - value[0]).max(initial=0) < largest, signal


@pytest.mark.parametrize("name", MODELS)
def test_quantised_stays_close_and_says_what_was_done(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, name, initializer_range=0.1)  # mild: logits follow inputs smoothly
    source = open_source(str(tmp_path), print)
    spec = find_architecture(source.config).spec(source.config, None)
    downs = {f"layers.{i}.down" for i in range(spec.num_layers)}
    for target in TARGETS:
        runners = {
            precision: GraphRunner(
                export_model(source, tmp_path / (target + precision), precision, target=target)
            )
            for precision in ("fp32", *LIMITS)
        }
        exact = runners["fp32"].step(IDS)["logits"]
        for precision, limit in LIMITS.items():
            assert divergence(exact, runners[precision].step(IDS)["logits"]) < limit
        report = runners["int8"].bundle.manifest.quantization
        assert set(report["weights_only"]) == downs | ({"head"} if spec.post_norms else set())
        assert ("smoothed" in " ".join(report["steps"])) == spec.post_norms


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_queries_are_scaled_in_front_of_every_float16_product(
    name: str, target: str, tmp_path: Path
) -> None:
    """Unscaled, scores of Qwen2's large biases pass float16's 65,504."""
    write_model(tmp_path, name)
    source = open_source(str(tmp_path), print)
    bundle = export_model(source, tmp_path / "b", "fp16", target=target)
    graph = onnx.load(bundle.path("model.onnx"), load_external_data=False).graph
    makers = {output: node for node in graph.node for output in node.output}
    constants = {t.name: t for t in graph.initializer}
    spec = find_architecture(source.config).spec(source.config, None)
    scales = []
    for node in graph.node:
        if node.op_type == "MatMul":
            turned = makers.get(node.input[1])
            if (
                turned is not None
                and turned.op_type == "Transpose"
                and len(turned.attribute[0].ints) == 4
            ):
                scaled = makers[node.input[0]]
                assert scaled.op_type == "Mul"
                scales.append(float(onnx.numpy_helper.to_array(constants[scaled.input[1]])))
    attention, mass = spec.attention_scale, spec.attention_scale / 2
    plain = spec.num_layers if target == "jetson-jp6" or spec.attention_softcap else 0
    assert sorted(scales) == pytest.approx([mass, *[attention] * plain], rel=1e-3)


def test_mass_of_large_scores_is_that_of_the_twin(tmp_path: Path) -> None:
    write_model(tmp_path, "qwen2")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            parameter.data *= 400
    model.save_pretrained(tmp_path)
    source = open_source(str(tmp_path), print)
    for target in TARGETS:
        exact, half = (
            GraphRunner(export_model(source, tmp_path / (target + p), p, target=target)).step(IDS)
            for p in ("fp32", "fp16")
        )
        assert np.isfinite(half["attention_mass"]).all()
        total = exact["attention_mass"].sum()
        assert np.abs(half["attention_mass"] - exact["attention_mass"]).sum() < 0.05 * total


def test_rotary_that_depends_on_the_length_is_that_of_the_cache(tmp_path: Path) -> None:
    """A Jetson's cache is shorter than the model's context, here on the short side of longrope."""
    lengths = {"max_position_embeddings": 4096, "original_max_position_embeddings": 3000}
    write_model(tmp_path, "phi3 longrope", **lengths)
    source = open_source(str(tmp_path), print)
    long, short, jetson = (
        export_model(source, tmp_path / name, "fp32", target=target, capacity=capacity).manifest
        for name, target, capacity in (
            ("long", "cpu", None),
            ("short", "cpu", 2048),
            ("jetson", "jetson-jp7", None),
        )
    )
    assert jetson.max_capacity == 2048
    assert jetson.rotary == short.rotary != long.rotary
