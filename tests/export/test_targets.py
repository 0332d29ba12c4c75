"""What can be asked of a target, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from edgechat.errors import SettingsError
from edgechat.export import TARGETS, check_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("int8", None, None, "jetson-nano"), "choose cpu, cuda, jetson-jp7, jetson-jp6"),
        (("int8", None, None, "cuda"), "choose int8-weight, fp16, fp32"),
        (("int8-weight", "int8", None, "cuda"), "leave --kv out"),
        (("fp16", None, None, "cpu"), "unknown to cpu; choose int8, int8-weight, fp32"),
        (("int4", None, None, "jetson-jp7"), "int8, int8-weight, fp16, fp32"),
        (("int8", "int8", None, "jetson-jp7"), "leave --kv out"),
        (("int8", "fp16", None, "cpu"), "choose fp32, int8"),
        (("int8", None, 4, "jetson-jp6"), "between 16"),
    ],
)
def test_what_a_target_cannot_do_is_refused(options: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        check_options(*options)
    assert len(str(caught.value).splitlines()) == 1


def test_caches_fit_the_target() -> None:
    cpu, cuda, jetson = TARGETS["cpu"], TARGETS["cuda"], TARGETS["jetson-jp6"]
    assert cuda.kv("int8-weight", None) == "fp16"
    assert cuda.capacity(8192) == 8192  # any length up to that when it runs
    assert cpu.kv("int8", None) == "fp32"
    assert cpu.kv("int8", "int8") == "int8"
    assert jetson.kv("int8", None) == "fp16"
    assert jetson.kv("fp32", None) == "fp32"
    assert (cpu.capacity(8192), jetson.capacity(8192), jetson.capacity(512)) == (8192, 2048, 512)
