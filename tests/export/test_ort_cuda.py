"""The graphs for CUDA, in the precisions a GPU gets, run by ONNX Runtime's CPU; their kernels.

That they are the model's, test_gpu_architectures.py shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tiny_models import divergence, random_ids, transformers_logits, write_model

from edgechat.bundle import Bundle
from edgechat.errors import UnsupportedModelError
from edgechat.export import export_model, open_source
from edgechat.export.dialects.cuda_kernels import check_cuda
from edgechat.graph_runner import GraphRunner

IDS = random_ids(80)
LIMITS = {"fp16": 1e-5, "int8-weight": 3e-3}  # nats of KL divergence


def export(folder: Path, out: Path, precision: str, target: str = "cuda", **more: Any) -> Bundle:
    return export_model(open_source(str(folder), print), out, precision, target=target, **more)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2 with windows", "falcon 40B"])
def test_what_runs_on_a_gpu_stays_close_to_transformers(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "hf", name, initializer_range=0.1)  # mild: logits follow smoothly
    exact = transformers_logits(tmp_path / "hf", IDS)
    for precision, limit in LIMITS.items():
        bundle = export(tmp_path / "hf", tmp_path / precision, precision)
        runner = GraphRunner(bundle)
        found = [runner.step(IDS[part])["logits"] for part in np.split(np.arange(80), [50, 51])]
        assert divergence(exact, np.concatenate(found)) < limit
        assert runner.keys.dtype == np.float16 == np.dtype(bundle.manifest.kv_dtype)


def test_hidden_sizes_that_fill_no_block_have_surprisal_too(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", "llama", hidden_size=80, num_attention_heads=5,
                num_key_value_heads=5, initializer_range=0.1)  # fmt: skip
    exact, rounded = (
        GraphRunner(export(tmp_path / "hf", tmp_path / p, p)).step(IDS)["surprisal"]
        for p in ("fp32", "int8-weight")
    )
    assert np.abs(exact - rounded).max() < 0.2 < exact.std()


def test_mass_of_large_scores_does_not_overflow(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", "qwen2", initializer_range=2.0)
    exact, half = (
        GraphRunner(export(tmp_path / "hf", tmp_path / p, p)).step(IDS)["attention_mass"]
        for p in ("fp32", "fp16")
    )
    assert np.isfinite(half).all()
    assert half.sum() == pytest.approx(exact.sum(), rel=1e-3) == pytest.approx(4 * 80, rel=1e-3)


def test_without_importance_only_logits_and_cache_are_left(
    tiny_folder: Path, tmp_path: Path
) -> None:
    bundle = export(tiny_folder, tmp_path / "b", "int8-weight", importance=False)
    names = {tensor.name for tensor in bundle.manifest.graph.outputs}
    assert names == {"logits", "present_key.{i}", "present_value.{i}"}
    assert GraphRunner(bundle).step(IDS[:3], all_logits=False)["logits"].shape == (1, 320)


def opset_21(model: Any) -> None:
    model.opset_import[0].version = 21


def float32_attention(model: Any) -> None:
    nodes = model.graph.node
    place, node = next((i, n) for i, n in enumerate(nodes) if n.op_type == "GroupQueryAttention")
    nodes.insert(place, helper.make_node("Cast", [node.input[0]], ["wide"], to=TensorProto.FLOAT))
    nodes[place + 1].input[0] = "wide"


def stored_blocks(model: Any) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Gather")
    node.op_type, node.domain = "GatherBlockQuantized", "com.microsoft"


def whole_numbers(model: Any) -> None:
    model.graph.node.insert(0, helper.make_node("Softmax", ["input_ids"], ["odd"], "odd"))


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (opset_21, "opset 21"),
        (float32_attention, "GroupQueryAttention of FLOAT"),
        (stored_blocks, "GatherBlockQuantized"),
        (whole_numbers, "Softmax of INT64"),
    ],
)
def test_what_would_run_on_the_cpu_is_refused(
    plant: Callable[[Any], None], message: str, tiny_folder: Path, tmp_path: Path
) -> None:
    bundle = export(tiny_folder, tmp_path / "b", "int8-weight")
    model = onnx.load(bundle.path("model.onnx"), load_external_data=False)
    check_cuda(model)
    plant(model)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        check_cuda(model)
    assert len(str(caught.value).splitlines()) == 1
