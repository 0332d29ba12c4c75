"""An export takes the memory of the largest layer, however many there are."""

from __future__ import annotations

from pathlib import Path

import large_model
import onnx
import pytest

LAYER = 4 * (2 * 768 * (768 + 192) + 3 * 768 * 3072)  # bytes in float32


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_layers(tmp_path: Path) -> None:
    """Six more layers are 100 MB in the checkpoint and 200 MB in float32; a layer is 34 MB."""
    config = dict(
        hidden_size=768,
        intermediate_size=3072,
        num_attention_heads=12,
        num_key_value_heads=3,
        vocab_size=2000,
        max_position_embeddings=512,
    )
    text = tmp_path / "calibration.txt"
    text.write_text("One window is enough to take the way a whole text takes. " * 10)
    peaks = []
    for layers in (2, 8):
        values = {**large_model.LLAMA_3_2_1B, **config, "num_hidden_layers": layers}
        source, target = tmp_path / f"model-{layers}", tmp_path / f"bundle-{layers}"
        large_model.write_large_model(source, values)
        peaks.append(large_model.export(source, target, "--calibration", str(text))[0])
        onnx.checker.check_model(str(target / "model.onnx"))
    assert peaks[1] - peaks[0] < LAYER, peaks
