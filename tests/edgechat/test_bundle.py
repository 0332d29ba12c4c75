"""A bundle that was edited, cut or forged is refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgechat import Chat
from edgechat.bundle import load_bundle
from edgechat.errors import BundleError, EdgechatError

FILES = ["model.onnx", "model.data", "tokenizer.json", "chat_template.jinja"]


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))


def edit(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = bundle / "edgechat.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file(copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match=name):
        load_bundle(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        load_bundle(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit(copy: Path, name: str) -> None:
    path = copy / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=f"{name} does not match its checksum"):
        Chat.open(copy)


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "outside": lambda d: d["files"].update({"../evil": {"size": 1, "sha256": ""}}),
    "absolute": lambda d: d["files"].update({"/etc/passwd": {"size": 1, "sha256": ""}}),
    "graph outside": lambda d: d["graph"].update(file="../model.onnx"),
    "schema": lambda d: d.update(schema=99),
    "unknown field": lambda d: d.update(surprise=1),
    "missing field": lambda d: d.pop("dims"),
    "wrong type": lambda d: d["dims"].update(num_layers="3"),
    "bool for int": lambda d: d["dims"].update(num_layers=True),
    "negative": lambda d: d["dims"].update(num_layers=-3),
    "huge": lambda d: d.update(max_capacity=1 << 40),
    "eos outside": lambda d: d["tokens"].update(eos=[10**9]),
    "rotary": lambda d: d["rotary"][0].update(inv_freq=[1.0]),
    "a layer rotated twice": lambda d: d["rotary"][0].update(layers=[0, 1, 1]),
    "a layer that is not there": lambda d: d["rotary"][0].update(layers=[0, 3]),
    "kv type": lambda d: d.update(kv_dtype="float8"),
    "no tokenizer": lambda d: d["files"].pop("tokenizer.json"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_forged_manifest(copy: Path, change: str) -> None:
    edit(copy, CHANGES[change])
    with pytest.raises(BundleError) as caught:
        load_bundle(copy)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "[" * 100_000])
def test_a_manifest_that_is_no_manifest(copy: Path, text: str) -> None:
    (copy / "edgechat.json").write_text(text)
    with pytest.raises(BundleError):
        load_bundle(copy)


def test_a_link_that_leaves_the_bundle(copy: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (copy / "model.data").rename(outside)
    (copy / "model.data").symlink_to(outside)
    with pytest.raises(BundleError, match="link"):
        load_bundle(copy)


def test_a_manifest_whose_dims_are_not_the_graphs(copy: Path) -> None:
    edit(copy, lambda d: d["dims"].update(num_layers=4))
    with pytest.raises(EdgechatError, match="contract"):
        Chat.open(copy)


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_no_bundle_at_all(path: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="edgechat export"):
        load_bundle(tmp_path / path)
