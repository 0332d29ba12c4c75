"""Profiles are strict, and flags override them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgechat.errors import ProfileError, SettingsError
from edgechat.settings import Settings, load_profile, profile_names


def test_every_shipped_profile_loads() -> None:
    assert {"chat", "document", "npc"} <= set(profile_names())
    for name in profile_names():
        assert load_profile(name).description


@pytest.mark.parametrize(
    "text",
    [
        "surprise: 1",
        "cache_window: many",
        "cache_window: 3",
        "sampling: {temperature: -1}",
        "sampling: {heat: 1}",
        "- a list",
        "a: [",
        "",
        "cache_window: true",
        "prefill_chunk: 4",
        "target: mars",
        "device: {}",
        "device: 8",
        "device: {memory_gib: 0}",
        "device: {memory_gib: 8, bandwidth_gb_per_second: -102}",
        "device: {memory_gib: .inf}",
        "device: {memory_gib: 8, int8_tops: .nan}",
        "device: {memory_gib: 8, reserved_gib: 8}",
    ],
)
def test_a_bad_profile_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profile(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_overrides_reach_into_sampling() -> None:
    settings = load_profile("npc").override(temperature=0.0, cache_window=99, sinks=None)
    assert (settings.sampling.temperature, settings.cache_window, settings.sinks) == (0.0, 99, 4)


def test_capacity_shrinks_a_profile_but_not_a_wish() -> None:
    assert Settings(cache_window=1000).slots(500, window_asked=False) == 500
    assert Settings(cache_window=100).slots(500, window_asked=True) == 104
    assert Settings(policy="full").slots(500, window_asked=False) == 500
    with pytest.raises(SettingsError, match="--capacity"):
        Settings(cache_window=1000).slots(500, window_asked=True)
