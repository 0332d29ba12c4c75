"""The bundle: a folder with a graph, weights, tokenizer and ``edgechat.json``, its manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgechat.errors import BundleError
from edgechat.validate import Invalid, build

SCHEMA = 3
MANIFEST = "edgechat.json"
KV_BYTES = {"float32": 4, "float16": 2, "int8": 1}  # of an element of the cache
ON_CPU = ("ort_cpu", "optimum")  # the dialects that no GPU runs
SURPRISAL_IDS = 8192  # ids a surprisal's partition sums over: tokenizers number by frequency
LARGEST_MANIFEST = 4 << 20  # bytes; a real one is a few KiB


@dataclass(frozen=True)
class Dims:
    """Sizes of the decoder, in elements."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int


def kv_bytes_per_slot(d: Dims, kv_dtype: str) -> int:
    """Bytes of keys and values one cached token takes, all layers together."""
    return 2 * d.num_layers * d.num_kv_heads * d.head_dim * KV_BYTES[kv_dtype]


@dataclass(frozen=True)
class Rotary:
    """What compaction needs to rotate cached keys to new positions (angles per position).

    ``layers`` are those whose keys are rotated so; layers of no Rotary leave keys as they are.
    """

    dim: int
    inv_freq: tuple[float, ...]
    kind: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class TensorInfo:
    """One graph input or output; a ``str`` dimension is symbolic, ``{i}`` in a name is a layer."""

    name: str
    dtype: str
    shape: tuple[Any, ...]

    def names(self, layers: int) -> list[str]:
        """The graph's own names: one for each layer, or the only one."""
        if "{i}" not in self.name:
            return [self.name]
        return [self.name.replace("{i}", str(layer)) for layer in range(layers)]


@dataclass(frozen=True)
class Graph:
    """The graph contract: the file and the tensors the runtime binds."""

    file: str
    dialect: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class Tokens:
    """Special tokens. ``adds_bos``: a text gets ``bos`` in front unless it is there already.
    ``stops`` are strings that end a reply, where no token does."""

    bos: int | None
    eos: tuple[int, ...]
    adds_bos: bool
    size: int
    special: dict[str, str] = field(default_factory=dict)
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Abilities:
    """What a graph allows of its KV cache.

    ``in_place``: past and present are one buffer; else they are two, and every step copies all.
    ``moves_keys``: cached keys can be turned to other positions; else what stays behind a
    compaction or an edit is read again.
    """

    in_place: bool = True
    moves_keys: bool = True


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter merged at export; ``sha256`` is of its weights."""

    name: str
    sha256: str


@dataclass(frozen=True)
class FileInfo:
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything in ``edgechat.json``; see the fields' own classes."""

    schema: int
    name: str
    architecture: str
    source: str
    precision: str
    kv_dtype: str
    max_capacity: int
    weight_bytes_per_token: int
    dims: Dims
    rotary: tuple[Rotary, ...]
    graph: Graph
    tokens: Tokens
    files: dict[str, FileInfo]
    quantization: dict[str, Any] = field(default_factory=dict)
    adapter: Adapter | None = None
    abilities: Abilities = Abilities()
    compact: Graph | None = None
    """Moves kept slots to the front, for engines whose cache is not in host memory."""

    @property
    def has_importance(self) -> bool:
        """Whether the graph tells what key tokens and recall need."""
        return any(t.name == "surprisal" for t in self.graph.outputs)

    @property
    def kv_bytes_per_slot(self) -> int:
        """Bytes of keys and values one cached token takes, all layers together."""
        return kv_bytes_per_slot(self.dims, self.kv_dtype) * (1 if self.abilities.in_place else 2)


@dataclass(frozen=True)
class Bundle:
    """A manifest whose files are present with the right sizes, and where they are."""

    folder: Path
    manifest: Manifest

    @property
    def identity(self) -> str:
        """SHA-256 of the manifest, which holds the checksums of all other files."""
        return sha256(self.folder / MANIFEST)

    def path(self, name: str) -> Path:
        return self.folder / name

    def verify(self) -> None:
        """Compare every file with its checksum; BundleError names the first that differs."""
        for name, info in self.manifest.files.items():
            try:
                found = sha256(self.path(name))
            except OSError as error:
                raise BundleError(f"{self.path(name)} cannot be read ({error.strerror}).") from None
            if found != info.sha256:
                raise BundleError(
                    f"{self.path(name)} does not match its checksum in {MANIFEST}; it was edited "
                    "or damaged: export the bundle again."
                )


def load_bundle(folder: str | Path) -> Bundle:
    """Read and check a bundle's manifest and its files' sizes. Checksums: ``Bundle.verify``.

    Raises BundleError when anything is missing, malformed, truncated or outside the folder.
    """
    root = Path(folder)
    path = root / MANIFEST
    try:
        present = path.is_file()
    except (OSError, ValueError):  # such as a name longer than the file system allows
        present = False
    if not present:
        hint = "make one with: edgechat export MODEL --int8"
        what = "is no bundle (it has no edgechat.json)" if root.is_dir() else "does not exist"
        raise BundleError(f"{root} {what}; {hint}")
    manifest = _read_manifest(path)
    for name, info in manifest.files.items():
        if Path(name).name != name or name in (".", ".."):
            raise BundleError(f"{path} names a file outside the bundle: {name!r}; do not use it.")
        if len(name) > 100 or not name.isprintable():
            raise BundleError(f"{path} names a file strangely: {name[:40]!r}; export it again.")
        file = root / name
        if file.is_symlink():
            raise BundleError(f"{file} is a link; a bundle holds its own files: copy it again.")
        size = file.stat().st_size if file.is_file() else None
        if size != info.size:
            found = "is missing" if size is None else f"has {size:,} bytes instead of {info.size:,}"
            raise BundleError(f"{file} {found}; copy or export the bundle again.")
    for needed in (manifest.graph.file, "tokenizer.json"):
        if needed not in manifest.files:
            raise BundleError(f"{path} does not list {needed}; export the bundle again.")
    return Bundle(root, manifest)


def _read_manifest(path: Path) -> Manifest:
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise BundleError(f"{path} is far too large for a manifest; export the bundle again.")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read ({error}); export the bundle again.") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise BundleError(
            f"{path} has schema {schema!r}, this edgechat reads {SCHEMA}; export the bundle again "
            "with this version."
        )
    try:
        manifest = build(Manifest, data)
        _check_ranges(manifest)
    except Invalid as error:
        raise BundleError(f"{path} is not valid: {error}; export the bundle again.") from None
    return manifest


def _check_ranges(m: Manifest) -> None:
    """Refuse numbers that would make later allocations or indexing nonsense."""
    for name, value in dataclasses.asdict(m.dims).items():
        if not 0 < value < 1 << 24:
            raise Invalid(f"dims.{name} is {value}")
    if m.dims.num_layers > 1000:
        raise Invalid(f"dims.num_layers is {m.dims.num_layers}")
    if not 0 < m.max_capacity < 1 << 24:
        raise Invalid(f"max_capacity is {m.max_capacity}")
    if m.kv_dtype not in KV_BYTES:
        raise Invalid(f"kv_dtype is {m.kv_dtype!r}")
    for rotary in m.rotary:
        if not all(math.isfinite(x) for x in rotary.inv_freq):
            raise Invalid("rotary.inv_freq holds a value that is not finite")
        if len(rotary.inv_freq) * 2 != rotary.dim or rotary.dim > m.dims.head_dim:
            raise Invalid("rotary.inv_freq does not fit rotary.dim")
    rotated = [layer for rotary in m.rotary for layer in rotary.layers]
    if len(set(rotated)) != len(rotated) or not set(rotated) <= set(range(m.dims.num_layers)):
        raise Invalid("rotary.layers names a layer twice or one there is not")
    if not 0 < m.tokens.size <= m.dims.vocab_size:
        raise Invalid(f"tokens.size is {m.tokens.size} for {m.dims.vocab_size} embeddings")
    if any(not 0 <= i < m.dims.vocab_size for i in m.tokens.eos):
        raise Invalid(f"tokens.eos is {m.tokens.eos}")
    if m.tokens.bos is not None and not 0 <= m.tokens.bos < m.dims.vocab_size:
        raise Invalid(f"tokens.bos is {m.tokens.bos}")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``edgechat.json`` (last, after the files it lists)."""
    text = json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def file_info(path: Path) -> FileInfo:
    return FileInfo(path.stat().st_size, sha256(path))


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
