"""Static int8: every scale is a number the float16 graph holds exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgechat.bundle import load_bundle
from edgechat.export import export_model, open_source
from edgechat.export.architectures import find_architecture
from edgechat.export.quantize.activations import Calibrator
from edgechat.export.quantize.rotate import RotatedWeights
from edgechat.export.quantize.static import StaticWeights
from edgechat.export.sources.base import Source, read_checked
from edgechat.export.spec import StaticInt8Linear
from edgechat.graph_runner import GraphRunner

IDS = np.random.default_rng(5).integers(3, 259, size=(2, 100))


class Changed:
    """A source with one of its tensors multiplied."""

    def __init__(self, source: Source, name: str, factor: float | np.ndarray) -> None:
        self._source, self._name, self._factor = source, name, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def tensor(self, name: str) -> np.ndarray:
        value = self._source.tensor(name)
        return value * np.asarray(self._factor, np.float32) if name == self._name else value


@pytest.mark.parametrize("float_inputs", [False, True])
def test_scales_are_float16_and_downs_take_float_inputs(
    float_inputs: bool, make_folder: Callable[..., Path]
) -> None:
    source = open_source(str(make_folder(seed=2)), print)
    architecture = find_architecture(source.config)
    spec = architecture.spec(source.config, None)
    plain = architecture.weights(
        spec, lambda name, shape: read_checked(source, name, shape), source.config
    )
    rotated = RotatedWeights(plain, spec)
    static = StaticWeights(rotated, spec, Calibrator(rotated, spec, IDS), float_inputs)
    static.embedding()
    for index in range(spec.num_layers):
        expected, layer = rotated.layer(index), static.layer(index)
        for role in ("qkv", "o", "gate_up", "down"):
            linear, weight = getattr(layer, role), getattr(expected, role).weight
            assert isinstance(linear, StaticInt8Linear)
            assert (linear.scales == linear.scales.astype(np.float16)).all()
            assert (linear.scales >= 2.0**-14).all()
            error = linear.codes * linear.scales[:, None] - weight
            assert np.sqrt(np.square(error).mean()) < 0.02 * weight.std()
            assert (linear.input_scale is None) == (float_inputs or role == "down")


@pytest.mark.parametrize("factor", [0.0, 1e-7])
def test_weights_too_small_for_float16_scales_do_no_harm(
    factor: float, tiny_folder: Path, tmp_path: Path
) -> None:
    """A down-projection of zeros, as pruning leaves it, is exported and adds nothing."""
    source = open_source(str(tiny_folder), print)
    name = "model.layers.1.mlp.down_proj.weight"
    logits = []
    for precision in ("int8-weight", "fp32"):
        changed = Changed(source, name, factor)
        bundle = export_model(changed, tmp_path / precision, precision, target="jetson-jp6")
        logits.append(GraphRunner(load_bundle(bundle.folder)).step(IDS[0])["logits"])
    assert np.isfinite(logits[0]).all()
    assert np.abs(logits[0] - logits[1]).mean() < 0.15 * logits[1].std()


def test_a_row_of_the_embedding_may_be_nearly_zero(tiny_folder: Path, tmp_path: Path) -> None:
    """As of tokens that were never trained."""
    source = open_source(str(tiny_folder), print)
    factors = np.ones((source.config["vocab_size"], 1))
    factors[-1] = 1e-9
    changed = Changed(source, "model.embed_tokens.weight", factors)
    bundle = export_model(changed, tmp_path / "b", "int8", target="jetson-jp7")
    assert np.isfinite(GraphRunner(bundle).step(IDS[0])["logits"]).all()
