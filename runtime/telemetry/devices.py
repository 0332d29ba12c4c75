"""All sensors of this machine as one."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from types import TracebackType

from edgechat.runtime.telemetry import nvidia_smi, tegrastats
from edgechat.runtime.telemetry.reading import Reading
from edgechat.runtime.telemetry.stream import Stream, is_installed
from edgechat.runtime.telemetry.sysfs import SensorFiles

log = logging.getLogger(__name__)


class Device:
    """Reads sysfs under ``root``, and what it lacks from tegrastats and nvidia-smi where they are.

    They are started here and ended by ``close``; their first line comes about a second later.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = SensorFiles(root)
        self._streams: list[Stream] = []
        self._is_tegra = is_installed(tegrastats.COMMAND)
        for command, parse in (
            (tegrastats.COMMAND, tegrastats.parse_tegrastats),
            (nvidia_smi.COMMAND, self._parse_nvidia_smi),
        ):
            if is_installed(command):
                try:
                    self._streams.append(Stream(command, parse))
                except OSError as error:
                    log.warning("%s cannot be started (%s)", command[0], error.strerror)

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self) -> Reading:
        reading = self._files.read()
        for stream in self._streams:
            reading = reading.filled_from(stream.latest)
        return reading

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams = []

    def _parse_nvidia_smi(self, line: str) -> Reading:
        """A Jetson's GPU is on a rail of the board already: its power is not counted twice."""
        found = nvidia_smi.parse_nvidia_smi(line)
        return dataclasses.replace(found, rails={}) if self._is_tegra else found
