"""FP8 checkpoints are read as what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import bundle_logits, random_ids, transformers_logits
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

from edgechat.errors import EdgechatError
from edgechat.export import export_model, open_source

FP8 = torch.float8_e4m3fn
BLOCK, RAGGED = (32, 16), (48, 32)


def quantise(folder: Path, settings: dict[str, Any], suffix: str, kind: str) -> None:
    """Round the linears of a checkpoint to FP8 with a scale for each ``kind``; ``folder``/exact
    gets what they then stand for."""
    path, exact = folder / "model.safetensors", folder / "exact"
    tensors, rounded = load_file(path), {}
    for name, value in tensors.items():
        rounded[name] = value
        if not name.endswith("proj.weight"):
            continue
        rows, columns = {"tensor": value.shape, "row": (1, value.shape[1])}.get(
            kind, settings.get("weight_block_size")
        )
        grid = [-(-n // b) for n, b in zip(value.shape, (rows, columns), strict=True)]
        scale = torch.ones(grid)
        for i, j in np.ndindex(*grid):
            part = value[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scale[i, j] = part.abs().max() / 448
        wide = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        wide = wide[: value.shape[0], : value.shape[1]]
        rounded[name] = (value / wide).to(FP8)
        tensors[name] = rounded[name].float() * wide
        rounded[name + suffix] = scale if kind != "tensor" else scale.squeeze()
        if "input_scale" in settings:
            rounded[name.replace("weight", "input_scale")] = torch.tensor(0.5)
    exact.mkdir()
    save_file(tensors, exact / "model.safetensors", {"format": "pt"})
    save_file(rounded, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (exact / "config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "blocks": ({"quant_method": "fp8", "weight_block_size": BLOCK}, "_scale_inv", "block"),
    "ragged": ({"quant_method": "fp8", "weight_block_size": RAGGED}, "_scale_inv", "block"),
    "tensor": ({"quant_method": "fp8", "input_scale": "static"}, "_scale", "tensor"),
    "rows": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "_scale", "row"),
}


@pytest.mark.parametrize("case", CASES)
def test_fp8_weights_are_multiplied_by_their_scales(
    case: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder()
    quantise(folder, *CASES[case])
    source = open_source(str(folder), print)
    bundle = export_model(source, tmp_path / "b", "fp32")
    ids = random_ids(60)
    logits = bundle_logits(bundle.folder, ids)
    assert np.abs(logits - transformers_logits(folder / "exact", ids)).max() < 1e-3
    assert "FP8" in bundle.manifest.source
    if case == "blocks":  # the one kind that transformers dequantises by itself
        exact = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            quantization_config=FineGrainedFP8Config(weight_block_size=BLOCK, dequantize=True),
        )
        with torch.no_grad():
            theirs = exact(torch.from_numpy(ids)[None]).logits[0].float().numpy()
        assert np.abs(logits - theirs).max() < 1e-3


def test_scales_that_do_not_fit_are_named(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_folder()
    quantise(folder, *CASES["blocks"])
    path = folder / "config.json"
    path.write_text(path.read_text().replace("[32, 16]", "[16, 16]"))
    with pytest.raises(EdgechatError, match=r"_scale_inv of shape .* does not fit"):
        export_model(open_source(str(folder), print), tmp_path / "b", "fp32")


def test_fp8_without_scales_is_refused(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_folder()
    quantise(folder, *CASES["blocks"])
    tensors = load_file(folder / "model.safetensors")
    lacking = {k: v for k, v in tensors.items() if not k.endswith("down_proj.weight_scale_inv")}
    save_file(lacking, folder / "model.safetensors")
    with pytest.raises(EdgechatError, match="F8_E4M3"):
        export_model(open_source(str(folder), print), tmp_path / "b", "fp32")
