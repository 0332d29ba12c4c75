"""What the engines for GPUs share: one row, its cache on the device."""

from __future__ import annotations

from edgechat.bundle import Bundle
from edgechat.runtime.cuda import Cuda
from edgechat.runtime.device_cache import DeviceCache
from edgechat.runtime.engine import KV, Signals, check_capacity

Shape = tuple[int, bool]  # tokens of a step, whether it gives all their logits
DECODE: Shape = (1, False)


class DeviceEngine:
    """The part of :class:`~edgechat.runtime.engine.Engine` that does not depend on what runs the
    graph. ``close`` frees what ``__init__`` made, and what came since."""

    rows = 1
    moves_keys = True
    first_alone = False  # float activations or static scales: no token spoils another's
    _cache: DeviceCache

    def __init__(self, bundle: Bundle, capacity: int, importance: bool) -> None:
        check_capacity(bundle.manifest, capacity, importance)
        dims = bundle.manifest.dims
        self.capacity = capacity
        self.vocab_size, self.hidden_size = dims.vocab_size, dims.hidden_size
        self.num_heads = dims.num_heads
        self.signals: Signals | None = None
        self._bundle, self._importance = bundle, importance
        self._cuda = Cuda()

    def read(self, row: int, start: int, count: int) -> KV:
        return self._cache.read(row, start, count)

    def write(self, row: int, start: int, kv: KV, origin: int) -> None:
        self._cache.write(row, start, kv, origin)

    def close(self) -> None:
        self._cuda.close()

    def __del__(self) -> None:
        if hasattr(self, "_cuda"):
            self.close()
