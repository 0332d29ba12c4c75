"""Every architecture computes what transformers computes, exactly and quantised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import MODELS, bundle_logits, random_ids, transformers_logits, write_model

from edgechat.export import export_model, open_source


@pytest.mark.parametrize("name", MODELS)
def test_fp32_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    """Over prefill, decode and chunks, at lengths of several windows."""
    write_model(tmp_path, name)
    bundle = export_model(open_source(str(tmp_path), print), tmp_path / "b", "fp32").folder
    ids = random_ids(150)
    expected = transformers_logits(tmp_path, ids)
    actual = bundle_logits(bundle, ids, [1, 40, 7, 1, 1])
    assert np.abs(actual - expected).max() < 1e-3
    assert (actual.argmax(1) == expected.argmax(1)).all()
