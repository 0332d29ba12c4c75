"""Workers as seen from the parent: ask one, while all the others are stopped.

A runtime's threads may spin after their work is done (ONNX Runtime and OpenMP both do, and are
faster for it), which would slow whoever is measured next. Rather than switch that off, and with
it the peer's best speed, a worker is stopped by signal whenever it is not its turn.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STAT = Path("/proc/stat")
TICKS = os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal


class WorkerFailed(RuntimeError):
    """A worker died or answered nonsense; its log file has the reason."""


@dataclass(frozen=True)
class Launch:
    """How to start a worker: the environment's Python, the script, the model, its log."""

    name: str
    python: Path
    script: str
    model: Path
    threads: int
    capacity: int
    log: Path
    variant: str = ""


@dataclass
class Turn:
    """One answer, and what else the machine did meanwhile."""

    answer: dict[str, Any]
    others_busy: float | None = None  # share of the CPUs taken by other programs
    idle_spent: float = 0.0  # CPU seconds used by workers that should have been stopped


@dataclass
class Worker:
    launch: Launch
    process: subprocess.Popen[str] = field(init=False)
    info: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        start = self.launch
        command = [str(start.python), str(HERE / start.script), "--model", str(start.model)]
        command += ["--threads", str(start.threads), "--capacity", str(start.capacity)]
        command += ["--variant", start.variant]
        # Some libraries size a thread pool while they are imported, before they can be told.
        count = {"OMP_NUM_THREADS": str(start.threads)}
        with start.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **count},
            )
        self.info = self._read()["ready"]
        self.stop()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Resume, ask, stop."""
        assert self.process.stdin is not None
        self.resume()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return self._read()
        except BrokenPipeError as error:
            raise self._failure() from error
        finally:
            self.stop()

    def close(self) -> None:
        """End the worker; by force if it does not read the end of its input."""
        self.resume()
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far; 0 where the system does not tell."""
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> WorkerFailed:
        tail = self.launch.log.read_text(errors="replace").splitlines()[-20:]
        return WorkerFailed("\n".join([f"{self.launch.name}: the worker ended", *tail]))


def machine_busy_seconds() -> float | None:
    """CPU time spent by everything on the machine since it started."""
    if not STAT.is_file():
        return None
    ticks = STAT.read_text().splitlines()[0].split()[1:]
    return sum(int(ticks[index]) for index in BUSY_FIELDS) / TICKS


def take_turn(worker: Worker, others: list[Worker], request: dict[str, Any]) -> Turn:
    """One request to one worker, with an account of who else used the CPUs."""
    start = time.perf_counter()
    busy, own = machine_busy_seconds(), worker.cpu_seconds()
    idle = sum(other.cpu_seconds() for other in others)
    turn = Turn(worker.ask(request))
    turn.idle_spent = sum(other.cpu_seconds() for other in others) - idle
    busy_after = machine_busy_seconds()
    if busy is not None and busy_after is not None:
        spent = busy_after - busy - (worker.cpu_seconds() - own)
        available = (time.perf_counter() - start) * (os.cpu_count() or 1)
        turn.others_busy = min(1.0, max(0.0, spent / available))
    return turn
