"""NVIDIA's own parser and builder take the graphs; skipped without the ``rtx`` extra."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tiny_models import MODELS, write_model

from edgechat.errors import EngineError
from edgechat.export import export_model, open_source
from edgechat.runtime.tensorrt.api import load_rtx
from edgechat.runtime.tensorrt.build import build_ahead

GPUS = ("SM86", "SM120")
FORMS = [("jetson-jp7", "int8"), ("jetson-jp7", "fp16"), ("jetson-jp6", "int8")]
FORMS += [("jetson-jp6", "fp16"), ("jetson-jp6", "int8-weight")]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        load_rtx()
    except EngineError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("target", "precision"), FORMS)
def test_engines_are_built_for_two_gpus(
    target: str, precision: str, tiny_folder: Path, tmp_path: Path
) -> None:
    source = open_source(str(tiny_folder), print)
    bundle = export_model(source, tmp_path / "b", precision, target=target)
    layers = bundle.manifest.dims.num_layers
    for gpu in GPUS:
        built, compact = build_ahead(bundle, gpu)
        assert built.cache_updates == (2 * layers if target == "jetson-jp7" else 0)
        assert built.fused_attentions == 2 * layers  # one for each profile
        assert built.fused_weights >= (layers if precision.startswith("int8") else 0)
        assert compact.engine


@pytest.mark.parametrize("target", ["jetson-jp7", "jetson-jp6"])
@pytest.mark.parametrize("name", [name for name in MODELS if " " not in name])
def test_engines_of_every_architecture_are_built(name: str, target: str, tmp_path: Path) -> None:
    write_model(tmp_path, name)
    bundle = export_model(open_source(str(tmp_path), print), tmp_path / "b", target=target)
    layers = bundle.manifest.dims.num_layers
    built, compact = build_ahead(bundle, "SM86")
    assert built.cache_updates == (2 * layers if target == "jetson-jp7" else 0)
    assert built.fused_weights >= layers
    # kernels with a soft cap there are none, and none for one KV head in plain operators
    plain = name == "gemma2" or (name, target) == ("falcon", "jetson-jp6")
    assert built.fused_attentions == (0 if plain else 2 * layers)
    assert compact.engine


def test_a_graph_without_importance_is_built(tiny_folder: Path, tmp_path: Path) -> None:
    source = open_source(str(tiny_folder), print)
    bundle = export_model(source, tmp_path / "b", target="jetson-jp7", importance=False)
    assert all(built.engine for built in build_ahead(bundle, "SM86"))


def test_a_refusal_is_one_sentence(tiny_folder: Path, tmp_path: Path) -> None:
    """The builder's own complaint about an attention with two outputs."""
    source = open_source(str(tiny_folder), print)
    bundle = export_model(source, tmp_path / "b", "fp16", target="jetson-jp7")
    model = onnx.load(bundle.path("model.onnx"), load_external_data=False)
    next(n for n in model.graph.node if n.op_type == "Attention").output.append("present")
    onnx.save(model, bundle.path("model.onnx"))
    with pytest.raises(EngineError, match="one output") as caught:
        build_ahead(bundle, "SM86")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("target", ["jetson-jp7", "jetson-jp6"])
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_engines_of_the_real_model(
    precision: str, target: str, smollm2_gguf: Path, tmp_path: Path
) -> None:
    """Two profiles; int8 takes 1.45 times the int8 weights at most, so they are there once."""
    source = open_source(str(smollm2_gguf), print)
    bundle = export_model(source, tmp_path / "b", precision, target=target)
    dims = bundle.manifest.dims
    weights = bundle.manifest.weight_bytes_per_token + dims.vocab_size * dims.hidden_size
    for gpu in GPUS:
        built, _ = build_ahead(bundle, gpu)
        assert built.cache_updates == (60 if target == "jetson-jp7" else 0)
        assert built.fused_attentions == 60
        if precision == "int8":
            assert len(built.engine) < 1.45 * weights
            assert built.fused_weights == 60
