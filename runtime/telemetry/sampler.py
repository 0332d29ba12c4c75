"""Readings while something runs, added up to energy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from edgechat.runtime.telemetry.devices import Device
from edgechat.runtime.telemetry.reading import Reading, counted_rails, total_watts

INTERVAL = 0.5  # seconds; sysfs answers in a few milliseconds


@dataclass(frozen=True)
class Summary:
    """What was measured in a span of ``seconds``; None is not measured.

    ``watts`` is the mean of what ``counted_rails`` add up to, ``joules`` that times ``seconds``.
    ``throttled`` names what was held back at any time or how often the hardware stepped in.
    """

    seconds: float
    watts: float | None
    joules: float | None
    counted_rails: tuple[str, ...]
    rails: dict[str, float]
    celsius_before: float | None
    celsius_after: float | None
    celsius_most: float | None
    cpu_percent: float | None
    gpu_percent: float | None
    memory_used_most: int | None
    throttled: tuple[str, ...]

    def per_joule(self, count: float) -> float | None:
        """``count`` of something, such as tokens, for each joule."""
        return count / self.joules if self.joules else None


class Span:
    """Adds up readings between ``begin`` and ``end``.

    A reading's power counts for the time since the one before (RAPL's is the mean of just that,
    the INA monitors average too). A rail that did not answer now and then is averaged over the
    time it did.
    """

    def __init__(self) -> None:
        self._begun = self._last = 0.0
        self._joules: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._loads: dict[str, list[float]] = {"cpu_percent": [0, 0], "gpu_percent": [0, 0]}
        self._celsius: list[float] = []  # first, last, highest
        self._memory: int | None = None
        self._held: dict[str, None] = {}  # a set in order
        self._events: tuple[dict[str, int], dict[str, int]] = {}, {}

    def begin(self, now: float, reading: Reading) -> None:
        self._begun = self._last = now
        self._note(reading)

    def add(self, now: float, reading: Reading) -> None:
        passed, self._last = now - self._last, now
        for name, watts in reading.rails.items():
            self._joules[name] = self._joules.get(name, 0) + watts * passed
            self._seconds[name] = self._seconds.get(name, 0) + passed
        for name, sums in self._loads.items():
            percent = getattr(reading, name)
            if percent is not None:
                sums[0] += percent * passed
                sums[1] += passed
        self._note(reading)

    def summary(self) -> Summary:
        seconds = self._last - self._begun
        rails = {n: self._joules[n] / s for n, s in self._seconds.items() if s > 0}
        watts = total_watts(rails)
        means = {n: total / s if s else None for n, (total, s) in self._loads.items()}
        first, last, highest = self._celsius or (None, None, None)
        return Summary(
            seconds=seconds,
            watts=watts,
            joules=None if watts is None else watts * seconds,
            counted_rails=() if watts is None else tuple(counted_rails(rails)),
            rails=rails,
            celsius_before=first,
            celsius_after=last,
            celsius_most=highest,
            cpu_percent=means["cpu_percent"],
            gpu_percent=means["gpu_percent"],
            memory_used_most=self._memory,
            throttled=(*self._held, *self._event_names()),
        )

    def _note(self, reading: Reading) -> None:
        celsius = reading.celsius
        if celsius is not None:
            first, _, highest = self._celsius or (celsius, celsius, celsius)
            self._celsius = [first, celsius, max(highest, celsius)]
        if reading.memory_used is not None:
            self._memory = max(self._memory or 0, reading.memory_used)
        self._held.update(dict.fromkeys(reading.throttled))
        before, after = self._events
        for name, count in reading.throttle_events.items():
            before.setdefault(name, count)
            after[name] = count

    def _event_names(self) -> list[str]:
        before, after = self._events
        risen = {name: after[name] - before[name] for name in after}
        return [f"{name} ({count:,} times)" for name, count in risen.items() if count > 0]


class Sampler:
    """Reads the device twice a second in a thread while it is open.

    >>> with Sampler() as sampler:
    ...     with sampler.span() as span:
    ...         ...
    ...     print(span.summary().joules)
    """

    def __init__(self, device: Device | None = None, interval: float = INTERVAL) -> None:
        self._device = device or Device()
        self._interval = interval
        self._spans: list[Span] = []
        self._last = 0.0, Reading()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self._device.close()

    @contextmanager
    def span(self) -> Iterator[Span]:
        """What happens in the block; it is read once at its start and once at its end, too."""
        span = Span()
        with self._lock:
            self._sample()
            span.begin(*self._last)
            self._spans.append(span)
        try:
            yield span
        finally:
            with self._lock:
                self._sample()
                self._spans.remove(span)

    def _sample(self) -> None:
        reading = self._device.read()
        self._last = time.monotonic(), reading
        for span in self._spans:
            span.add(*self._last)

    def _run(self) -> None:
        while not self._done.wait(self._interval):
            with self._lock:
                self._sample()
