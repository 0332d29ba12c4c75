"""What a bundle will take is known before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from tiny_models import MODELS, write_model

from edgechat.errors import BundleError
from edgechat.export import export, export_model, open_source
from edgechat.export.size import OTHERS, data_bytes

FORMS = [("cpu", p) for p in ("int8", "int8-weight", "fp32")]
FORMS += [
    ("cuda", "int8-weight"),
    ("cuda", "fp16"),
    ("jetson-jp6", "int8"),
    ("jetson-jp6", "fp16"),
    ("jetson-jp7", "int8-weight"),
]


CASES = [(name, True) for name in MODELS if " " not in name] + [("llama", False)]


@pytest.mark.parametrize(("name", "importance"), CASES)
def test_the_estimate_covers_the_data_and_not_much_more(
    name: str, importance: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a vocabulary that outweighs the layers."""
    write_model(tmp_path, name, vocab_size=9000)
    source, estimates = open_source(str(tmp_path), print), []

    def remember(*args: Any) -> int:
        estimates.append(data_bytes(*args))
        return estimates[-1]

    monkeypatch.setattr(export, "data_bytes", remember)
    forms = FORMS if importance and name in ("llama", "gemma2") else FORMS[:4:3]
    for target, precision in forms:
        bundle = export_model(
            source, tmp_path / (target + precision), precision, target=target, importance=importance
        )
        stored = 0
        for file in bundle.folder.glob("*.onnx"):
            graph = onnx.load(file, load_external_data=False).graph
            for tensor in graph.initializer:
                places = {entry.key: entry.value for entry in tensor.external_data}
                stored += int(places.get("length", 0))
        assert stored <= estimates[-1] < 1.2 * stored, (target, precision)
        files = sum(info.size for info in bundle.manifest.files.values())
        assert files <= estimates[-1] + OTHERS


def test_a_disk_that_is_too_small_is_refused_at_once(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "data_bytes", lambda *_: 1 << 60)
    with pytest.raises(BundleError, match="MiB free"):
        export_model(open_source(str(tiny_folder), print), tmp_path / "b", "fp32")
    assert list(tmp_path.iterdir()) == []
