"""What a device is made of, as far as memory and speed depend on it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from edgechat.errors import SettingsError

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """Facts of a device from its maker's datasheet; None is not known.

    ``memory_gib``: what is built in (2^30 bytes); with ``shared_memory`` one memory serves
    processor and GPU, without it is the GPU's own. ``reserved_gib``: what system, desktop and
    driver keep of it. ``swap_gib``: swap space that building an engine may use.
    ``bandwidth_gb_per_second``: of that memory, in 10^9 bytes. ``int8_tops``, ``fp16_tflops``:
    10^12 operations a second in dense products, a multiplication with its addition being two.
    Raises SettingsError for a value that cannot be.
    """

    memory_gib: float
    shared_memory: bool = True
    reserved_gib: float = 0.0
    swap_gib: float = 0.0
    bandwidth_gb_per_second: float | None = None
    int8_tops: float | None = None
    fp16_tflops: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is None or isinstance(value, bool):
                continue
            least = 0.0 if name in ("reserved_gib", "swap_gib") else math.ulp(0.0)
            if not least <= value < 1e9:
                more = "0 or more" if least == 0 else "more than 0"
                raise SettingsError(f"device.{name} must be {more}, not {value}.")
        if self.reserved_gib >= self.memory_gib:
            raise SettingsError(
                f"device.reserved_gib is {self.reserved_gib}, all of the device's "
                f"{self.memory_gib} GiB; lower it."
            )

    @property
    def available_bytes(self) -> int:
        """Memory that is left for edgechat."""
        return int((self.memory_gib - self.reserved_gib) * GIB)

    @property
    def swap_bytes(self) -> int:
        return int(self.swap_gib * GIB)
