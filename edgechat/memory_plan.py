"""How much memory a bundle takes, line by line, before anything is loaded.

On the CPU the lines add up to what a long conversation takes at its peak, within -2 and +11 %
(scripts/memory_check.py; docs/architecture.md has the figures). Of TensorRT and CUDA the lines
marked as estimated are just that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from edgechat.assembly import archive_form, needs_importance
from edgechat.bundle import KV_BYTES, ON_CPU, SURPRISAL_IDS, Manifest
from edgechat.device import Device
from edgechat.errors import SettingsError
from edgechat.runtime.archive import BLOCK, archive_size
from edgechat.runtime.device_cache import MOST_KEPT, MOST_LOGITS, MOST_TOKENS
from edgechat.settings import Settings

MIB = 1 << 20
WEIGHT_BYTES = {"fp32": 4.0, "fp16": 2.0, "int8-weight": 1.125, "int8": 1.0}  # of a weight
TABLE_BYTES = {"fp32": 4, "fp16": 2, "int8-weight": 1, "int8": 1}  # of the embedding's elements
PROGRAM = 60 * MIB  # Python, numpy, ONNX Runtime and this package, loaded (x86-64 Linux)
TOKENIZER = 1024  # bytes a token of the vocabulary takes: 650 to 1,120, four tokenizers measured
PACKED = 40 / 36  # ONNX Runtime keeps a sum for each block of 32 weights besides its scale
CUDA = 512 * MIB  # context, libraries and their workspaces; a guess until a device has said
ENGINE = 1.3  # an engine with two profiles over its weights: 1.27 to 1.31 by scripts/build_rtx.py
BUILDER = 5.0  # what TensorRT-RTX takes while it builds over the weights' file: 4.5 to 5.1
LEAST_SLOTS = 128  # with fewer there is no conversation


@dataclass(frozen=True)
class Item:
    """One line of a plan. ``arithmetic`` says how ``bytes`` come about; ``estimated``: by rules
    of thumb that no device has confirmed. ``on_host``: never in a GPU's own memory."""

    name: str
    bytes: int
    arithmetic: str
    estimated: bool = False
    on_host: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """What a bundle takes. ``talking``: all at once during a long conversation; ``building``: once,
    while TensorRT builds the engine; () where nothing is built. ``slots``: tokens the KV cache
    keeps; TensorRT allocates and reads ``allocated_slots`` of them. The archive is on disk."""

    dialect: str
    slots: int
    allocated_slots: int
    kv_bytes_per_slot: int
    talking: tuple[Item, ...]
    building: tuple[Item, ...]
    archive_disk_bytes: int
    archive_tokens: int

    @property
    def on_gpu(self) -> bool:
        return self.dialect not in ON_CPU

    @property
    def talking_bytes(self) -> int:
        """Memory of the machine and of the GPU together."""
        return sum(item.bytes for item in self.talking)

    @property
    def gpu_bytes(self) -> int:
        """What of it lies in a GPU's memory where it has its own; 0 on the processor."""
        return sum(i.bytes for i in self.talking if not i.on_host) if self.on_gpu else 0

    @property
    def building_bytes(self) -> int:
        return sum(item.bytes for item in self.building)

    def left(self, device: Device) -> int:
        """Bytes of ``device`` that are free while it talks, negative when it does not fit.

        Raises SettingsError when the device is a GPU with memory of its own that the bundle does
        not run on.
        """
        if not self.on_gpu and not device.shared_memory:
            raise SettingsError(
                "the profile describes a GPU with memory of its own, but this bundle runs on the "
                "processor; export it with that profile (or --target cuda)."
            )
        return device.available_bytes - self._in(device, self.talking)

    def left_building(self, device: Device) -> int:
        """The same while the engine is built; what does not fit may be swapped out."""
        return device.available_bytes + device.swap_bytes - self._in(device, self.building)

    def fits(self, device: Device) -> bool:
        return self.left(device) >= 0 and self.left_building(device) >= 0

    @staticmethod
    def _in(device: Device, items: tuple[Item, ...]) -> int:
        return sum(i.bytes for i in items if device.shared_memory or not i.on_host)


def plan_memory(manifest: Manifest, settings: Settings, window_asked: bool = False) -> MemoryPlan:
    """The plan of a run with ``settings``.

    ``window_asked``: a window that the bundle does not allow is refused (SettingsError) instead of
    shrunk. Raises ArchiveError when the archive is too small for one block.
    """
    slots = settings.slots(manifest.max_capacity, window_asked)
    dialect = manifest.graph.dialect
    tensorrt = dialect.startswith("tensorrt")
    disk = tokens = 0
    if settings.recalls:
        size = archive_size(*archive_form(manifest, settings))
        disk, tokens = size.most * size.record_bytes, size.most * BLOCK
    allocated = manifest.max_capacity if tensorrt else slots
    return MemoryPlan(
        dialect=dialect,
        slots=slots,
        allocated_slots=allocated,
        kv_bytes_per_slot=manifest.kv_bytes_per_slot,
        talking=tuple(_talking(manifest, settings, slots, allocated)),
        building=tuple(_building(manifest)) if tensorrt else (),
        archive_disk_bytes=disk,
        archive_tokens=tokens,
    )


def remedies(manifest: Manifest, settings: Settings, device: Device) -> list[str]:
    """What would make a bundle fit that does not, each checked by a plan of its own; [] when
    nothing does."""
    found = []
    fewer = _most_slots(manifest, settings, device)
    if fewer:
        found.append(_smaller_cache(manifest, settings, fewer))
    if manifest.graph.dialect == "ort_cpu" and manifest.kv_dtype == "float32":
        int8 = dataclasses.replace(manifest, kv_dtype="int8")
        if plan_memory(int8, settings).fits(device):
            found.append("an export with --kv int8")
    lightest = "int8-weight" if manifest.graph.dialect == "ort_cuda" else "int8"
    lighter = in_precision(manifest, lightest)
    if manifest.precision in ("fp32", "fp16") and manifest.graph.dialect != "optimum":
        if plan_memory(lighter, settings).fits(device):
            found.append(f"an export with --precision {lightest}")
        elif not fewer and (fewer := _most_slots(lighter, settings, device)):
            smaller = _smaller_cache(manifest, settings, fewer)
            found.append(f"an export with --precision {lightest} and {smaller}")
    plan = plan_memory(manifest, settings)
    if plan.left(device) >= 0 and device.shared_memory:
        missing = -(-(device.swap_bytes - plan.left_building(device)) // (1 << 30))
        found.append(f"{missing} GiB of swap (device.swap_gib) while the engine is built")
    return found


def in_precision(manifest: Manifest, precision: str) -> Manifest:
    """``manifest`` as an export in another precision would say, by the sizes of a weight."""
    ratio = WEIGHT_BYTES[precision] / WEIGHT_BYTES[manifest.precision]
    files = {
        name: dataclasses.replace(info, size=int(info.size * ratio))
        if name.endswith(".data")
        else info
        for name, info in manifest.files.items()
    }
    return dataclasses.replace(
        manifest,
        precision=precision,
        weight_bytes_per_token=int(manifest.weight_bytes_per_token * ratio),
        files=files,
    )


def _talking(manifest: Manifest, settings: Settings, slots: int, allocated: int) -> Iterator[Item]:
    dims, dialect, precision = manifest.dims, manifest.graph.dialect, manifest.precision
    importance = manifest.has_importance and needs_importance(settings)
    on_gpu, tensorrt = dialect not in ON_CPU, dialect.startswith("tensorrt")
    per_slot, read = manifest.kv_bytes_per_slot, manifest.weight_bytes_per_token
    table = dims.vocab_size * dims.hidden_size * TABLE_BYTES[precision]
    if tensorrt:
        yield Item(
            "weights",
            int(ENGINE * (read + table)),
            f"{ENGINE} x ({mib(read)} of products + {mib(table)} of embedding): an engine with "
            "two profiles",
            estimated=True,
        )
    else:
        rest = max(_data(manifest) - read, table)
        packed = int(read * PACKED) if (dialect, precision) == ("ort_cpu", "int8-weight") else read
        yield Item(
            "weights",
            packed + rest,
            f"{mib(packed)} of products + {mib(rest)} of embedding, surprisal and rotary tables",
        )
    element = KV_BYTES[manifest.kv_dtype]
    buffers = "" if manifest.abilities.in_place else "2 buffers x "
    yield Item(
        "KV cache",
        allocated * per_slot,
        f"{allocated:,} slots x {per_slot:,} bytes ({buffers}2 x {dims.num_layers} layers x "
        f"{dims.num_kv_heads} heads x {dims.head_dim} x {element})",
    )
    if on_gpu:
        moved = min(max(MOST_TOKENS, MOST_KEPT), allocated)
        yield Item(
            "new and moved slots",
            2 * moved * per_slot,
            f"2 x {moved} x {per_slot:,} bytes, of a step or a compaction, and on their way",
        )
    chunk = prefill_chunk(manifest, settings)
    yield _scratch(manifest, chunk, allocated, importance)
    rows = MOST_LOGITS if tensorrt else 1 if manifest.abilities.in_place else chunk
    yield Item(
        "logits", rows * 4 * dims.vocab_size, f"{rows} x {dims.vocab_size:,} tokens x 4 bytes"
    )
    yield Item(
        "slots put aside",
        slots * per_slot,
        f"{slots:,} x {per_slot:,} bytes, while passages are recalled or a text is edited",
        on_host=True,
    )
    if settings.recalls:
        yield from _memory(manifest, settings, slots)
    if on_gpu:
        yield Item("CUDA", CUDA, "context and libraries", estimated=True)
    vocabulary = manifest.tokens.size * TOKENIZER
    yield Item(
        "program",
        PROGRAM + vocabulary,
        f"{mib(PROGRAM)} + {manifest.tokens.size:,} tokens x {TOKENIZER:,} bytes of tokenizer, "
        "as measured on x86-64 Linux",
        on_host=True,
    )


def prefill_chunk(manifest: Manifest, settings: Settings) -> int:
    """Tokens a prefill step feeds; engines for GPUs have buffers for so many."""
    on_gpu = manifest.graph.dialect not in ON_CPU
    return min(settings.prefill_chunk, MOST_TOKENS) if on_gpu else settings.prefill_chunk


def _scratch(manifest: Manifest, chunk: int, slots: int, importance: bool) -> Item:
    """What a prefill step computes with, of the largest layer; float32 on the CPU."""
    dims = manifest.dims
    on_gpu = manifest.graph.dialect not in ON_CPU
    size = 2 if on_gpu else 4
    # A GPU's attention is fused; what remains are the scores of the one layer that is watched.
    copies = (2 if importance else 0) if on_gpu else (3 if importance else 2)
    scores = copies * 4 * dims.num_heads * slots
    surprisal = 4 * min(SURPRISAL_IDS, dims.vocab_size) if importance else 0
    activations = size * (3 * dims.intermediate_size + 4 * dims.hidden_size)
    return Item(
        "a chunk's scratch",
        chunk * (scores + surprisal + activations),
        f"{chunk} tokens x ({copies} x {dims.num_heads} heads x {slots:,} slots x 4 bytes + "
        f"{surprisal:,} of surprisal + {activations:,} of activations)",
        estimated=on_gpu,
    )


def _memory(manifest: Manifest, settings: Settings, slots: int) -> Iterator[Item]:
    size, hidden = archive_size(*archive_form(manifest, settings)), manifest.dims.hidden_size
    yield Item(
        "hidden states", 4 * hidden * slots, f"{slots:,} slots x {hidden:,} x 4", on_host=True
    )
    statistics = 2 * 4 * hidden * hidden
    yield Item(
        "archive index",
        size.most * size.index_bytes + statistics,
        f"{size.most:,} blocks x {size.index_bytes:,} bytes when it is full + "
        f"2 x {hidden:,} x {hidden:,} x 4 of statistics",
        on_host=True,
    )


def _building(manifest: Manifest) -> Iterator[Item]:
    data = _data(manifest)
    yield Item(
        "builder",
        int(BUILDER * data),
        f"{BUILDER:.0f} x {mib(data)} of weights, as TensorRT-RTX takes",
        estimated=True,
    )
    yield Item("CUDA", CUDA, "context and libraries", estimated=True)
    yield Item("program", PROGRAM, "as measured on x86-64 Linux", on_host=True)


def _data(manifest: Manifest) -> int:
    """Bytes of graphs and weights."""
    return sum(i.size for n, i in manifest.files.items() if n.endswith((".onnx", ".data")))


def _most_slots(manifest: Manifest, settings: Settings, device: Device) -> int:
    """Most slots, in steps of 16, with which it fits; 0 when it does not with LEAST_SLOTS."""

    def fits(slots: int) -> bool:
        smaller = dataclasses.replace(manifest, max_capacity=slots)
        return plan_memory(smaller, settings).fits(device)

    low, high = LEAST_SLOTS // 16, plan_memory(manifest, settings).allocated_slots // 16
    if settings.sinks >= LEAST_SLOTS // 2 or high <= low or not fits(low * 16):
        return 0
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * 16) else (low, middle)
    return low * 16


def _smaller_cache(manifest: Manifest, settings: Settings, slots: int) -> str:
    if manifest.graph.dialect.startswith("tensorrt"):
        return f"an export with --capacity {slots}"
    return f"--window {slots - settings.sinks}"


def mib(size: int) -> str:
    """``size`` bytes in MiB, with a decimal where they are few."""
    value = size / MIB
    return f"{value:,.1f} MiB" if value < 10 else f"{value:,.0f} MiB"
