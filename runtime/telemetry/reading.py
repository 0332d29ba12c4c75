"""One reading of the device's sensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Rails that carry everything: the module's input, or (VIN, on Thor) that of the whole board.
WHOLE = ("VIN", "VDD_IN", "POM_5V_IN")
# Channels that carry nothing, or what another one (VIN_SYS_5V0) has measured already.
PARTS = frozenset({"NC", "VDDQ_VDD2_1V8AO"})
CHIP = ("cpu", "gpu", "soc", "cv", "mcpu", "bcpu", "package", "x86-pkg", "tctl", "tdie", "core")
COLDEST = -40.0  # °C; Orin's sensors say -256 while their part of the chip is off


@dataclass(frozen=True)
class Reading:
    """What the sensors said at one moment.

    ``rails``: watts by name; ``temperatures``: °C by name, in lower case; ``cpu_percent``: mean
    load of the running cores; ``cpu_mhz``: the fastest core's; memory and swap in bytes.
    ``throttled`` names what is held back right now; ``throttle_events`` counts, since the
    machine started, how often the hardware stepped in.
    """

    rails: Mapping[str, float] = field(default_factory=dict)
    temperatures: Mapping[str, float] = field(default_factory=dict)
    cpu_percent: float | None = None
    gpu_percent: float | None = None
    cpu_mhz: float | None = None
    gpu_mhz: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    swap_used: int | None = None
    swap_total: int | None = None
    throttled: tuple[str, ...] = ()
    throttle_events: Mapping[str, int] = field(default_factory=dict)

    @property
    def watts(self) -> float | None:
        """Power of what ``counted_rails`` names; None when nothing measures it."""
        return total_watts(self.rails)

    @property
    def celsius(self) -> float | None:
        """The hottest part of the chip."""
        return hottest(self.temperatures)

    def filled_from(self, other: Reading) -> Reading:
        """This reading with what it lacks taken from ``other``."""
        values: dict[str, object] = {}
        for name, own in vars(self).items():
            theirs = getattr(other, name)
            if isinstance(own, Mapping):
                values[name] = {**theirs, **own}
            else:
                values[name] = theirs if own is None or own == () else own
        return dataclasses.replace(self, **values)  # type: ignore[arg-type]


def counted_rails(names: Iterable[str]) -> list[str]:
    """Those of the rails that together are all the power that is measured, each watt once.

    One that feeds all others stands alone. Boards without one (AGX Orin, AGX Xavier) measure the
    inputs of several regulators side by side, which add up.
    """
    known = sorted(set(names) - PARTS)
    return next(([whole] for whole in WHOLE if whole in known), known)


def total_watts(rails: Mapping[str, float]) -> float | None:
    """Sum of the counted rails in W. A rail may read a little below zero (Thor's GPU when it is
    off: its sensor's offset), the sum of a machine that runs cannot."""
    watts = sum(rails[name] for name in counted_rails(rails))
    return watts if watts > 0 else None


def hottest(temperatures: Mapping[str, float]) -> float | None:
    """°C of the hottest part of the chip: ``tj``, which Jetsons make of all the others, or else
    the hottest sensor on the chip, or else of the board."""
    if "tj" in temperatures:
        return temperatures["tj"]
    chip = [value for name, value in temperatures.items() if name.startswith(CHIP)]
    return max(chip or temperatures.values(), default=None)


def real_temperatures(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sensors by one spelling: ``CPU-therm`` (R32, R35), ``cpu-thermal`` (R36 on) and ``CPU``
    (tegrastats) are all ``cpu``. Those that are off, and the PMIC's, which is always 100 or 50 °C,
    are left out."""
    sensors = {}
    for name, celsius in found:
        short = name.lower().replace("_", "-").removesuffix("-thermal").removesuffix("-therm")
        if celsius > COLDEST and not short.startswith("pmic"):
            sensors[short] = celsius
    return sensors
