"""What a plan counts is there, what it advises helps, its limits lie above what was seen."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_check import measure

from edgechat.assembly import make_archive
from edgechat.bundle import Dims, FileInfo, Graph, Manifest, Tokens, load_bundle
from edgechat.chat import Chat
from edgechat.device import GIB, Device
from edgechat.errors import SettingsError
from edgechat.memory_plan import MemoryPlan, in_precision, plan_memory, remedies
from edgechat.roofline import decode_limit, limits
from edgechat.runtime.archive import archive_size
from edgechat.settings import Settings, load_profile

Run = Callable[..., subprocess.CompletedProcess[str]]
MIB = 1 << 20


def qwen3(
    precision: str = "int8", dialect: str = "tensorrt_10_3", capacity: int = 2048
) -> Manifest:
    """As of Qwen3-0.6B, whose head is tied."""
    dims = Dims(151936, 1024, 3072, 28, 16, 8, 128, 40960)
    return in_precision(
        Manifest(
            schema=3,
            name="Qwen3-0.6B",
            architecture="qwen3",
            source="hf",
            precision="fp16",
            kv_dtype="float32" if dialect == "ort_cpu" else "float16",
            max_capacity=capacity,
            weight_bytes_per_token=1_192_000_000,
            dims=dims,
            rotary=(),
            graph=Graph("model.onnx", dialect, (), ()),
            tokens=Tokens(None, (151645,), False, 151669),
            files={
                "model.onnx": FileInfo(1 << 20, ""),
                "model.data": FileInfo(1_200_000_000, ""),
                "tokenizer.json": FileInfo(11 << 20, ""),
            },
        ),
        precision,
    )


def bytes_of(plan: MemoryPlan, name: str) -> int:
    (found,) = [item.bytes for item in plan.talking if item.name == name]
    return found


def test_a_cache_is_counted_as_the_engine_allocates_it(tiny_bundle: Path) -> None:
    plan = plan_memory(load_bundle(tiny_bundle).manifest, Settings(cache_window=100))
    with Chat.open(tiny_bundle, window=100) as chat:
        held = chat._engine.read(0, 0, plan.slots)
        assert chat._engine.capacity == plan.slots == plan.allocated_slots
    assert bytes_of(plan, "KV cache") == held.nbytes


def test_an_archive_is_counted_as_it_is_made(tiny_bundle: Path) -> None:
    loaded, settings = load_bundle(tiny_bundle), Settings(archive_mib=1)
    plan, archive = plan_memory(loaded.manifest, settings), make_archive(loaded, settings)
    row_bytes = sum(c.itemsize * math.prod(c.shape[1:]) for c in archive.table().values())
    size = archive_size(archive.shape, archive.dtype, archive.hidden_size, 1 << 20)
    assert size.index_bytes == row_bytes
    assert plan.archive_disk_bytes == archive.most * archive.record_bytes
    assert 0 <= MIB - plan.archive_disk_bytes < archive.record_bytes
    assert plan.archive_tokens == archive.most * 32
    archive.close()


def test_nothing_is_remembered_without_recall() -> None:
    plan = plan_memory(qwen3(), Settings(recall_blocks=0))
    assert plan.archive_disk_bytes == 0
    assert not {"hidden states", "archive index"} & {item.name for item in plan.talking}


def test_tensorrt_holds_and_reads_all_slots_and_builds() -> None:
    plan = plan_memory(qwen3(), Settings(cache_window=508))
    per_slot = 2 * 28 * 8 * 128 * 2
    assert (plan.slots, plan.allocated_slots) == (512, 2048)
    assert bytes_of(plan, "KV cache") == 2048 * per_slot
    assert plan.building_bytes > plan.talking_bytes
    device = load_profile("jetson-orin-nano-8gb").device
    assert device is not None
    decode, prefill = limits(qwen3(), Settings(), plan, device)
    assert decode.tokens_per_second == pytest.approx(102e9 / (596e6 + 2048 * per_slot), rel=1e-3)
    assert decode.tokens_per_second < prefill.tokens_per_second < 102e9 / 596e6 * 256


def test_a_gpu_of_its_own_holds_only_what_it_computes_with() -> None:
    cuda = dataclasses.replace(qwen3(), graph=Graph("model.onnx", "ort_cuda", (), ()))
    plan = plan_memory(cuda, Settings())
    own, shared = (Device(24, shared_memory=s) for s in (False, True))
    on_host = sum(i.bytes for i in plan.talking if i.on_host)
    assert plan.left(own) - plan.left(shared) == on_host > 0
    with pytest.raises(SettingsError, match="--target cuda"):
        plan_memory(qwen3(dialect="ort_cpu"), Settings()).left(own)


@pytest.mark.parametrize("dialect", ["ort_cpu", "tensorrt_10_3"])
def test_a_smaller_cache_is_as_large_as_fits(dialect: str) -> None:
    manifest = qwen3(dialect=dialect, capacity=16384)
    settings = Settings(policy="full")
    small = dataclasses.replace(manifest, max_capacity=4000)
    device = Device(max(plan_memory(small, settings).talking_bytes, 4 * GIB) / GIB)
    assert not plan_memory(manifest, settings).fits(device)
    advice = remedies(manifest, settings, device)[0]
    slots = int(advice.split()[-1]) + (settings.sinks if "--window" in advice else 0)
    for more, fits in ((0, True), (16, False)):
        other = dataclasses.replace(manifest, max_capacity=slots + more)
        assert plan_memory(other, settings).fits(device) is fits


def test_a_lighter_precision_and_swap_are_advised_where_they_help() -> None:
    device = Device(memory_gib=4)
    heavy, light = qwen3("fp16"), qwen3("int8")
    assert not plan_memory(heavy, Settings()).fits(device)
    assert plan_memory(light, Settings()).fits(device)
    advice = remedies(heavy, Settings(), device)
    assert advice[0] == "an export with --precision int8"
    swap = int(advice[1].split()[0])
    assert "swap" in advice[1]
    for more, fits in ((swap, True), (swap - 1, False)):
        assert (
            plan_memory(heavy, Settings()).fits(dataclasses.replace(device, swap_gib=more)) is fits
        )
    assert remedies(heavy, Settings(), Device(memory_gib=0.5)) == []


# Decode tokens/s of TensorRT Edge-LLM 0.9 as NVIDIA publishes them, INT4 (NVFP4 on Thor).
DEVICES = ("jetson-orin-nano-8gb", "jetson-orin-nx-16gb", "jetson-agx-orin-64gb", "jetson-thor")
PUBLISHED = {
    (596e6, 1024): dict(zip(DEVICES, (72.8, 117, 186, 303), strict=True)),
    (1721e6, 2048): dict(zip(DEVICES, (37, 60, 99, 154), strict=True)),
    (7568e6, 4096): dict(zip(DEVICES[1:], (19, 32.5, 49), strict=True)),
}


@pytest.mark.parametrize(("model", "speeds"), PUBLISHED.items())
def test_limits_lie_above_published_speeds(
    model: tuple[float, int], speeds: dict[str, float]
) -> None:
    """Qwen3 with half a byte a weight of the layers and a float16 head, the most it may read."""
    weights, hidden = model
    head = 151936 * hidden
    read = (weights - head) / 2 + 2 * head
    for profile, published in speeds.items():
        device = load_profile(profile).device
        assert device is not None and device.bandwidth_gb_per_second is not None
        limit = decode_limit(int(read), device.bandwidth_gb_per_second)
        assert 0.35 < published / limit < 1, profile


def test_plan_says_what_fits(run: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    data = json.loads(run("plan", tiny_bundle, "--profile", "small-cpu", "--json").stdout)
    assert data["fits"] is True
    assert data["left_bytes"] == data["available_bytes"] - sum(x["bytes"] for x in data["talking"])
    assert data["limits"][0]["tokens_per_second"] > 0
    shown = run("plan", tiny_bundle, "--profile", "npc,small-cpu").stdout
    for words in ("256 slots x", "together", "left while it talks", "12.8 GB/s /"):
        assert words in shown
    assert "no device" in run("plan", tiny_bundle).stdout
    tight = tmp_path / "tight.yaml"
    tight.write_text("device: {memory_gib: 0.01}")
    done = run("plan", tiny_bundle, "--profile", tight, code=1)
    assert "Does not fit" in done.stdout
    assert "choose a smaller model" in done.stderr and len(done.stderr.splitlines()) == 1
    assert (
        json.loads(run("plan", tiny_bundle, "--profile", tight, "--json", code=1).stdout)[
            "remedies"
        ]
        == []
    )
    assert "--capacity" in run("plan", tiny_bundle, "--window", "9999", code=1).stderr


def test_a_conversation_takes_what_the_plan_says(smollm2_int8: Path) -> None:
    settings = dataclasses.replace(load_profile("chat"), cache_window=508)
    plan = plan_memory(load_bundle(smollm2_int8).manifest, settings)
    _, peak = measure(smollm2_int8, 508, settings.prefill_chunk)
    assert plan.talking_bytes == pytest.approx(peak, rel=0.15)
