"""Tensors of one or more safetensors files: their headers at once, their values one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy for safetensors
import numpy as np
from safetensors import SafetensorError, safe_open

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.spec import Array

FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Header:
    file: Path
    shape: tuple[int, ...]
    dtype: str


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
        """The tensor as float32."""
        self.shape(name)
        path = self.headers[name].file
        try:
            with safe_open(path, framework="numpy") as file:
                return np.asarray(file.get_tensor(name)).astype(np.float32)
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{path} is damaged ({error}); download it again.") from None


def _headers(path: Path) -> dict[str, Header]:
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Header(path, tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise SourceError(f"{path} is damaged ({error}); download it again.") from None
