"""Tensors of one or more safetensors files: their headers at once, their values one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.spec import Array

TYPES: dict[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
}
FLOATS = ("F32", "F16", "BF16")  # that need no scales
PIECE = 1 << 22  # elements that are read and widened at once


@dataclass(frozen=True)
class Header:
    """Where a tensor stands: at byte ``start`` of ``file``."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    start: int


class SafetensorsFiles:
    """``headers`` by tensor name. SourceError names a file that is missing or damaged."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.headers: dict[str, Header] = {}
        for path in files:
            if not path.is_file():
                raise SourceError(f"{path} is missing; download the model again.")
            found = _headers(path)
            twice = self.headers.keys() & found.keys()
            if twice:
                name = min(twice)
                raise SourceError(
                    f"tensor {name} is in both {self.headers[name].file.name} and {path.name}; "
                    "download the model again."
                )
            self.headers |= found

    def names(self) -> Collection[str]:
        return self.headers.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that can be read; UnsupportedModelError for other types."""
        header = self.headers[name]
        if header.dtype not in FLOATS:
            raise UnsupportedModelError(
                f"tensor {name} has type {header.dtype}; edgechat exports float checkpoints "
                f"({', '.join(FLOATS)})."
            )
        return header.shape

    def read(self, name: str) -> Array:
        """The tensor's numbers as float32.

        Read by position and not mapped: pages of a mapping count as the process's memory.
        """
        header = self.headers[name]
        dtype = np.dtype(TYPES[header.dtype])
        result = np.empty(math.prod(header.shape), dtype=np.float32)
        try:
            with header.file.open("rb") as file:
                file.seek(header.start)
                for start in range(0, len(result), PIECE):
                    part = result[start : start + PIECE]
                    raw = file.read(len(part) * dtype.itemsize)
                    part[:] = np.frombuffer(raw, dtype=dtype)
        except (OSError, ValueError) as error:
            raise SourceError(f"{header.file} is damaged ({error}); download it again.") from None
        return result.reshape(header.shape)


def _headers(path: Path) -> dict[str, Header]:
    try:
        with safe_open(path, framework="numpy"):  # checks that the header fits the file
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(length))
    except (SafetensorError, OSError) as error:
        raise SourceError(f"{path} is damaged ({error}); download it again.") from None
    return {
        name: Header(path, tuple(e["shape"]), e["dtype"], 8 + length + e["data_offsets"][0])
        for name, e in entries.items()
        if name != "__metadata__"
    }
