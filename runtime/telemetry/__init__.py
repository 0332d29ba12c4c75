"""What the device does while a model runs: power, temperature, load, memory, clocks, throttling.

Everything is optional: what a machine does not measure is absent (None, or not in the mapping),
never zero. Jetsons are read from sysfs and tegrastats, PCs from sysfs and nvidia-smi.
"""

from edgechat.runtime.telemetry.devices import Device
from edgechat.runtime.telemetry.reading import Reading
from edgechat.runtime.telemetry.sampler import Sampler, Span, Summary

__all__ = ["Device", "Reading", "Sampler", "Span", "Summary"]
