"""A conversation in one safetensors file, written beside and renamed, with a checksum."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgechat.errors import SessionError
from edgechat.paths import beside
from edgechat.runtime.engine import KV
from edgechat.runtime.state import State

FORMAT = "edgechat-session-2"
RECORDS, CHECKSUM = "archive.records", "checksum"
DIGEST = 32  # bytes
DTYPES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "int64": "I64",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
NUMPY = {name: dtype for dtype, name in DTYPES.items()}
LONGEST_HEADER = 1 << 30  # bytes: it holds the whole conversation as text
# What reading data that are no session may raise.
UNSOUND = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
)


def save_state(path: Path, state: State, identity: str) -> None:
    """Write ``state`` to ``path``; the old file stays whole until the new one is.

    ``identity`` names the bundle. The archive's records are streamed, so that memory holds one.
    The last tensor is the BLAKE2b hash of everything before it. Only the user may read the file.
    Raises SessionError.
    """
    if _is_special(path):
        raise SessionError(
            f"the session could not be saved to {path}, which is no file; give it another name."
        )
    try:
        with beside(path) as temporary, open(temporary, "xb", opener=_private) as file:
            _write(file, state, identity)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SessionError(
            f"the session could not be saved to {path} ({error.strerror}); what was there before "
            "is kept."
        ) from None


def load_state(path: Path, identity: str) -> State:
    """Read and check a session; SessionError for a file that is missing, damaged, no session, or
    of another bundle than ``identity``."""
    if _is_special(path):
        raise SessionError(f"the session {path} cannot be read, for it is no file.")
    try:
        with path.open("rb") as file:
            _verify(file, path)
            header, start = _header(file)
            told = header.pop("__metadata__", {})
            if told.get("format") != FORMAT:
                raise SessionError(f"{path} is no session of this edgechat's format ({FORMAT}).")
            if told.get("bundle") != identity:
                raise SessionError(
                    f"{path} belongs to another bundle ({told.get('name', 'unknown')}); open it "
                    "with that one."
                )
            facts = json.loads(told["facts"])
            if not isinstance(facts, dict):
                raise ValueError("its facts are no mapping")
            size = os.fstat(file.fileno()).st_size - start
            for name, told_of in header.items():
                _check_tensor(name, told_of, size)
            del header[CHECKSUM]
            records = header.pop(RECORDS, None)
            if records is not None and records["shape"][:1] != header["archive.starts"]["shape"]:
                raise ValueError("its archive has records without an entry")
            arrays = {}
            for name, told_of in header.items():
                file.seek(start + told_of["data_offsets"][0])
                arrays[name] = _read(file, told_of["dtype"], told_of["shape"])
            return State(facts, arrays, _records(path, records, start))
    except OSError as error:
        reason = error.strerror or str(error)
        raise SessionError(f"the session {path} cannot be read ({reason}).") from None
    except UNSOUND as error:
        reason = str(error) or type(error).__name__
        raise SessionError(f"{path} is damaged or no session ({reason}).") from None


def _is_special(path: Path) -> bool:
    """A device, a pipe or a folder: reading may hang, and replacing it destroys it."""
    return path.exists() and not path.is_file()


def is_session(path: Path) -> bool:
    """Whether ``path`` looks like a session of any version, damaged or not."""
    try:
        with path.open("rb") as file:
            told = _header(file)[0]["__metadata__"]
            return str(told["format"]).startswith("edgechat-session")
    except (OSError, *UNSOUND):
        return False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _header(file: BufferedReader) -> tuple[dict[str, Any], int]:
    """The safetensors header, and where the data start. ValueError if there is none."""
    file.seek(0)
    size = int.from_bytes(file.read(8), "little")
    if size > min(LONGEST_HEADER, os.fstat(file.fileno()).st_size - 8):
        raise ValueError("it has no safetensors header")
    header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("it has no safetensors header")
    return header, 8 + size


def _check_tensor(name: str, told: dict[str, Any], size: int) -> None:
    """ValueError unless the ``size`` bytes of data have room for the tensor as it is told."""
    shape, (start, stop) = told["shape"], told["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
        raise ValueError(f"its tensor {name!r} has odd sizes")
    needed = math.prod(shape) * np.dtype(NUMPY[told["dtype"]]).itemsize
    if stop - start != needed or stop > size:
        raise ValueError(f"its tensor {name!r} does not fit its place")


def _read(file: BufferedReader, dtype: str, shape: list[int]) -> NDArray[Any]:
    array: NDArray[Any] = np.empty(shape, dtype=NUMPY[dtype])
    if array.size and file.readinto(_bytes(array)) != array.nbytes:
        raise ValueError("it ends too early")
    return array


def _records(path: Path, told: dict[str, Any] | None, start: int) -> Iterator[KV]:
    if told is not None:
        with path.open("rb") as file:
            file.seek(start + told["data_offsets"][0])
            for _ in range(told["shape"][0]):
                yield _read(file, told["dtype"], told["shape"][1:])


def _write(file: BufferedIOBase, state: State, identity: str) -> None:
    digest = hashlib.blake2b(digest_size=DIGEST)

    def put(data: Any) -> None:
        file.write(data)
        digest.update(data)

    header: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "bundle": identity,
            "name": str(state.facts.get("bundle_name", "")),
            "facts": json.dumps(state.facts),
        }
    }
    offset = 0

    def declare(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        nonlocal offset
        size = int(np.prod(shape)) * dtype.itemsize
        header[name] = {
            "dtype": DTYPES[dtype.name],
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size

    arrays = {name: np.ascontiguousarray(array) for name, array in state.arrays.items()}
    for name, array in arrays.items():
        declare(name, array.dtype, array.shape)
    count = len(arrays["archive.starts"]) if "archive.starts" in arrays else 0
    records = iter(state.records)
    first = next(records, None) if count else None
    if first is not None:
        declare(RECORDS, first.dtype, (count, *first.shape))
    declare(CHECKSUM, np.dtype(np.uint8), (DIGEST,))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    put(len(text).to_bytes(8, "little"))
    put(text)
    for array in arrays.values():
        put(_bytes(array))
    if first is not None:
        put(_bytes(first))
        for record in records:
            put(_bytes(record))
    file.write(digest.digest())


def _bytes(array: NDArray[Any]) -> memoryview | bytes:
    contiguous = np.ascontiguousarray(array)
    return contiguous.reshape(-1).view(np.uint8).data if contiguous.size else b""


def _verify(file: BufferedReader, path: Path) -> None:
    """SessionError unless the last bytes are the hash of all others."""
    left = os.fstat(file.fileno()).st_size - DIGEST
    digest = hashlib.blake2b(digest_size=DIGEST)
    while left > 0:
        part = file.read(min(left, 1 << 20))
        if not part:
            break
        digest.update(part)
        left -= len(part)
    if left or file.read() != digest.digest():
        raise SessionError(
            f"{path} is damaged or no session: its checksum does not match; use a backup or "
            "start a new one."
        )
