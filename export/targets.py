"""What a bundle is exported for: the dialect, and the precisions it can spell."""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.errors import SettingsError

LARGEST_CAPACITY = 1 << 20
FIXED_CAPACITY = 2048  # where every step reads the whole cache, however little is in it


@dataclass(frozen=True)
class Target:
    """``precisions`` and ``kv_precisions``, the first of each being the default; an empty
    ``kv_precisions`` means that the cache has the type of the products."""

    name: str
    dialect: str
    precisions: tuple[str, ...]
    kv_precisions: tuple[str, ...] = ()

    @property
    def is_tensorrt(self) -> bool:
        return self.dialect.startswith("tensorrt")

    @property
    def on_gpu(self) -> bool:
        return self.dialect != "ort_cpu"

    def capacity(self, context_length: int) -> int:
        """Slots of the cache where none are asked for."""
        return min(context_length, FIXED_CAPACITY if self.is_tensorrt else LARGEST_CAPACITY)

    def kv(self, precision: str, kv: str | None) -> str:
        """The KV cache's precision: fp32, fp16 or int8."""
        if self.kv_precisions:
            return kv or self.kv_precisions[0]
        return "fp32" if precision == "fp32" else "fp16"


JETSON_PRECISIONS = ("int8", "int8-weight", "fp16", "fp32")
TARGETS = {
    target.name: target
    for target in (
        Target("cpu", "ort_cpu", ("int8", "int8-weight", "fp32"), ("fp32", "int8")),
        # ONNX Runtime has no CUDA kernel for int8 inputs with a scale that is found at run time
        Target("cuda", "ort_cuda", ("int8-weight", "fp16", "fp32")),
        Target("jetson-jp7", "tensorrt_10_15", JETSON_PRECISIONS),
        Target("jetson-jp6", "tensorrt_10_3", JETSON_PRECISIONS),
    )
}


def check_options(
    precision: str, kv: str | None, capacity: int | None, target: str = "cpu"
) -> Target:
    """The target; SettingsError for a value that no export, or not this target's, can use."""
    found = TARGETS.get(target)
    if found is None:
        raise SettingsError(f"target {target!r} is unknown; choose {', '.join(TARGETS)}.")
    if precision not in found.precisions:
        known = ", ".join(found.precisions)
        raise SettingsError(f"precision {precision!r} is unknown to {target}; choose {known}.")
    if kv is not None and not found.kv_precisions:
        raise SettingsError(
            f"kv {kv!r} cannot be chosen for {target}, whose cache is fp16 (fp32 with precision "
            "fp32); leave --kv out."
        )
    if kv is not None and kv not in found.kv_precisions:
        raise SettingsError(f"kv {kv!r} is unknown; choose {', '.join(found.kv_precisions)}.")
    if capacity is not None and not 16 <= capacity <= LARGEST_CAPACITY:
        raise SettingsError(f"capacity {capacity} must be between 16 and {LARGEST_CAPACITY:,}.")
    return found
