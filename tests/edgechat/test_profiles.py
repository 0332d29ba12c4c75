"""Profiles say what they promise, join, and are explained."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgechat.cli.profiles import MEANINGS, values
from edgechat.errors import ProfileError
from edgechat.settings import DEFAULT_PROFILE, DIALECTS, Settings, load_profile, profile_names

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("name", "window", "ratio", "delta"),
    [("chat", 1536, 0.2, 0.1), ("document", 4096, 0.35, 0.05), ("npc", 512, 0.2, 0.1)],
)
def test_uses(name: str, window: int, ratio: float, delta: float) -> None:
    s = load_profile(name)
    assert (s.policy, s.cache_window, s.key_token_ratio, s.delta_threshold) == (
        "key", window, ratio, delta
    )  # fmt: skip
    assert s.recalls


def test_devices() -> None:
    small, large = load_profile("small-cpu"), load_profile("workstation-cpu")
    assert (small.kv, small.capacity, small.threads) == ("int8", 2048, 4)
    assert (large.kv, large.capacity, large.threads) == ("fp32", 8192, None)


def test_the_default_profile_is_the_defaults() -> None:
    assert values(load_profile(DEFAULT_PROFILE)) == values(Settings())


def test_later_profiles_win_where_they_say_something(tmp_path: Path) -> None:
    warm = tmp_path / "warm.yaml"
    warm.write_text("sampling: {top_k: 7}")
    joined = load_profile(f"npc, small-cpu,{warm}")
    assert (joined.cache_window, joined.recall_blocks, joined.max_tokens) == (512, 2, 128)
    assert (joined.kv, joined.threads) == ("int8", 4)
    assert (joined.sampling.temperature, joined.sampling.top_k) == (0.5, 7)
    assert load_profile("document,npc").cache_window == 512
    assert load_profile("npc,document").cache_window == 4096
    assert load_profile("small-cpu,workstation-cpu").threads is None
    with pytest.raises(ProfileError, match="'nobody'"):
        load_profile("npc,nobody")


def test_a_joined_profile_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("cache_window: few")
    with pytest.raises(ProfileError, match=r"bad\.yaml"):
        load_profile(f"npc,{path}")


def test_the_list_explains_every_value(run: Run) -> None:
    assert MEANINGS.keys() == values(Settings()).keys()
    shown = run("profiles").stdout
    for name in profile_names():
        assert f"{name}" in shown
        assert load_profile(name).description[:40] in " ".join(shown.split())
    listed = json.loads(run("profiles", "--json").stdout)
    assert listed.keys() == set(profile_names())
    assert listed["npc"]["sampling"]["temperature"] == 0.5


def test_run_tells_when_the_kv_precision_is_another(run: Run, tiny_bundle: Path) -> None:
    options = ["--prompt", "a", "-n", "1"]
    note = run("run", tiny_bundle, "--profile", "npc,small-cpu", *options).stderr
    assert "int8" in note and "export it again with --profile npc,small-cpu" in note
    assert run("run", tiny_bundle, "--profile", "workstation-cpu", *options).stderr == ""


def test_export_takes_kv_and_capacity_unless_given(
    run: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text("{kv: int8, capacity: 64}")
    options = ["-p", "fp32", "--profile", profile, "-o"]
    run("export", tiny_folder, *options, tmp_path / "a")
    run("export", tiny_folder, *options, tmp_path / "b", "--kv", "fp32", "--capacity", "128")
    found = [json.loads((tmp_path / name / "edgechat.json").read_text()) for name in "ab"]
    assert [(m["kv_dtype"], m["max_capacity"]) for m in found] == [("int8", 64), ("float32", 128)]


def test_a_profile_picks_the_target_and_a_jetson_the_window(
    run: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    options = ["-p", "fp16", "-o"]
    device = "jetson-orin-nano-8gb"
    run("export", tiny_folder, "--profile", f"npc,{device}", *options, tmp_path / "a")
    run(
        "export", tiny_folder, "--profile", device, "--target", "jetson-jp7", "--capacity", "128",
        *options, tmp_path / "b",
    )  # fmt: skip
    run(
        "export", tiny_folder, "--profile", "small-cpu", "--target", "jetson-jp7",
        *options, tmp_path / "c",
    )  # fmt: skip
    found = [json.loads((tmp_path / name / "edgechat.json").read_text()) for name in "abc"]
    assert [(m["graph"]["dialect"], m["max_capacity"]) for m in found] == [
        ("tensorrt_10_3", 516),
        ("tensorrt_10_15", 128),
        ("tensorrt_10_15", 1540),
    ]


def test_device_profiles() -> None:
    from edgechat.export import TARGETS

    found = {name: load_profile(name) for name in profile_names()}
    devices = {name for name, settings in found.items() if settings.device is not None}
    assert devices == {name for name, settings in found.items() if settings.target is not None}
    assert {"jetson-orin-nano-8gb", "jetson-orin-nx-16gb", "jetson-agx-orin-64gb"} < devices
    assert {"jetson-thor", "a100", "rtx3090", "small-cpu", "workstation-cpu"} < devices
    assert {name: target.dialect for name, target in TARGETS.items()}.items() <= DIALECTS.items()
    for name in devices:
        device = found[name].device
        assert device is not None and device.bandwidth_gb_per_second is not None
        if device.int8_tops is not None and device.fp16_tflops is not None:
            assert device.int8_tops >= 1.9 * device.fp16_tflops  # dense, both of them


def test_inspect_shows_settings_and_the_plan(run: Run, tiny_bundle: Path) -> None:
    def plan(*args: str) -> tuple[dict[str, Any], dict[str, Any]]:
        data = json.loads(run("inspect", tiny_bundle, "--json", *args).stdout)
        return data["settings"], data["memory_plan"]

    settings, memory = plan("--profile", "npc", "--window", "100")
    assert (settings["policy"], settings["recall_blocks"]) == ("key", 2)
    sizes = {item["name"]: item["bytes"] for item in memory["talking"]}
    assert (memory["slots"], sizes["hidden states"]) == (104, 64 * 4 * 104)
    assert memory["talking_bytes"] == sum(sizes.values())
    settings, memory = plan("--recall-blocks", "0", "--policy", "window")
    assert (settings["policy"], memory["archive_disk_bytes"]) == ("window", 0)
    shown = run("inspect", tiny_bundle, "--profile", "npc").stdout
    for word in ("key tokens", "pinned questions", "2 blocks of 32 tokens", "archive index"):
        assert word in shown
