"""A dialect takes the kinds of weights it can spell, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from released_configs import RELEASED

from edgechat.export.architectures import find_architecture
from edgechat.export.dialects.base import Dialect
from edgechat.export.dialects.ort_cpu import OrtCpu
from edgechat.export.dialects.ort_cuda import OrtCuda
from edgechat.export.dialects.tensorrt_10_3 import TensorRt103
from edgechat.export.dialects.tensorrt_10_15 import TensorRt1015
from edgechat.export.graph import GraphBuilder
from edgechat.export.spec import AnyLinear, Int8Linear, StaticInt8Linear

CODES, SCALES = np.ones((32, 32), np.int8), np.ones(32, np.float32)


@pytest.mark.parametrize(
    ("dialect", "linear"),
    [
        (OrtCpu, StaticInt8Linear(CODES, SCALES, input_scale=0.5)),
        (OrtCuda, Int8Linear(CODES, SCALES)),
        (OrtCuda, StaticInt8Linear(CODES, SCALES)),
        (TensorRt103, Int8Linear(CODES, SCALES)),
        (TensorRt1015, Int8Linear(CODES, SCALES)),
    ],
)
def test_int8_weights_meant_for_another_dialect_are_refused(
    dialect: type[OrtCpu | OrtCuda | TensorRt103 | TensorRt1015], linear: AnyLinear, tmp_path: Path
) -> None:
    """Their inputs would be rounded otherwise than calibration rounded them."""
    values = RELEASED["Qwen3-0.6B"]
    spec = find_architecture(values).spec(values, 64)
    with GraphBuilder(tmp_path / "g", tmp_path / "d", dialect.opsets) as graph:
        made: Dialect = (
            OrtCpu(graph, spec, True, 64)
            if dialect is OrtCpu
            else dialect(graph, spec, "float16", True, 64)
        )
        with pytest.raises(TypeError, match="down"):
            made.linear("x", linear, "down", "down")
