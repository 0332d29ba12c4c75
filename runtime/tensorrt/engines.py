"""Engines kept in the bundle, under the TensorRT, the GPU and the bundle they were built for.

    BUNDLE/engines/tensorrt-10.16.1-orin-sm87-0123456789abcdef/{decoder,compact}.engine
    BUNDLE/engines/tensorrt-10.16.1-orin-sm87.timings

An engine folder appears complete or not at all. What does not fit or is damaged is built again.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgechat.bundle import Bundle, FileInfo, file_info
from edgechat.errors import BundleError, EngineError
from edgechat.paths import beside, folder_beside, remove_leftovers
from edgechat.runtime.cuda import Cuda, Device
from edgechat.runtime.tensorrt import api as loader
from edgechat.runtime.tensorrt.build import (
    Options,
    build_compact_engine,
    build_decoder_engine,
)
from edgechat.runtime.tensorrt.contract import check_contract
from edgechat.validate import Invalid, build

FACTS = "engine.json"
FILES = ("decoder.engine", "compact.engine")
NEEDED = {"tensorrt_10_3": (10, 3), "tensorrt_10_15": (10, 15)}  # by dialect
LARGEST_FACTS, LARGEST_TIMINGS = 1 << 20, 64 << 20  # bytes
WORKSPACE = 512 << 20  # bytes a kernel may use besides inputs and outputs


@dataclass(frozen=True)
class Facts:
    """What an engine was built of and for; it runs nowhere else."""

    tensorrt: str
    gpu: str
    compute_capability: tuple[int, int]
    bundle: str
    files: dict[str, FileInfo]


@dataclass(frozen=True)
class Engines:
    """The folder with the engines of one bundle for one TensorRT and one GPU."""

    folder: Path

    @property
    def decoder(self) -> Path:
        return self.folder / FILES[0]

    @property
    def compact(self) -> Path:
        return self.folder / FILES[1]


def check_buildable(bundle: Bundle, api: Any = None) -> None:
    """EngineError unless the bundle is for TensorRT, in a precision and for a version (that of
    ``api``, if given) that builds it."""
    manifest = bundle.manifest
    dialect = manifest.graph.dialect
    if dialect not in NEEDED:
        raise EngineError(
            f"{bundle.folder} is not for TensorRT and needs no building; export with --target "
            "jetson-jp7 or jetson-jp6 for TensorRT."
        )
    try:
        str(bundle.folder.absolute()).encode()
    except UnicodeEncodeError:
        raise EngineError(
            f"TensorRT reads no files whose path is not UTF-8, as {str(bundle.folder)!a} is "
            "not; rename the folder."
        ) from None
    if manifest.precision == "fp32":
        raise EngineError(
            "TensorRT builds no float32 attention: this bundle is only for comparing on ONNX "
            "Runtime; export with --precision int8 or fp16."
        )
    if manifest.compact is None:
        raise EngineError(f"{bundle.folder} has no compact graph; export it again.")
    check_contract(manifest)
    needed = NEEDED[dialect]
    if api is not None and loader.version(api) < needed:
        raise EngineError(
            f"the bundle needs TensorRT {needed[0]}.{needed[1]} or later, here is "
            f"{api.__version__}; export with --target jetson-jp6, or update JetPack."
        )


def ensure_engines(
    bundle: Bundle,
    options: Options | None = None,
    say: Callable[[str], None] = lambda line: None,
    rebuild: bool = False,
) -> Engines:
    """The engines of ``bundle`` for this machine, built if there are none, or to ``rebuild``.

    Raises EngineError where TensorRT, the driver or the GPU is missing or refuses the bundle,
    BundleError when the engines cannot be written.
    """
    check_buildable(bundle)
    api = loader.load_tensorrt()
    check_buildable(bundle, api)
    cuda = Cuda()
    device = cuda.device
    cuda.close()
    found = find_engines(bundle, api, device)
    if isinstance(found, Engines) and not rebuild:
        return found
    reason = "asked to" if isinstance(found, Engines) else found
    say(
        f"{reason}: building with TensorRT {api.__version__} for {device.name}; this takes some "
        "minutes, and the engine is kept in the bundle"
    )
    return build_engines(bundle, api, device, options, say)


def find_engines(bundle: Bundle, api: Any, device: Device) -> Engines | str:
    """The engines for this machine, or why there are none to use."""
    folder = _folder(bundle, api, device)
    _refuse_link(folder.parent)
    try:
        if not folder.is_dir():
            return "there is no engine for this TensorRT, GPU and bundle yet"
        facts = build(Facts, json.loads(_read(folder / FACTS, LARGEST_FACTS)))
        wanted = _facts(bundle, api, device, facts.files)
        if facts != wanted or set(facts.files) != set(FILES):
            return "the engine was built for another TensorRT, GPU or bundle"
        for name, info in facts.files.items():
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != info.size or file_info(file) != info:
                return f"{name} is damaged"
    except OSError as error:
        return f"the engine cannot be read ({error.strerror})"
    except (ValueError, RecursionError, Invalid):
        return "the engine's description is damaged"
    return Engines(folder)


def build_engines(
    bundle: Bundle,
    api: Any,
    device: Device,
    options: Options | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Engines:
    """Build both engines for this machine and keep them, in place of any that were there.

    Engines of another content of this bundle go: nothing can load them any more. Raises
    EngineError when TensorRT refuses, BundleError when the folder cannot be written.
    """
    check_buildable(bundle, api)
    options = options or Options(workspace=WORKSPACE)
    folder = _folder(bundle, api, device)
    timings = folder.parent / (folder.name.rpartition("-")[0] + ".timings")
    _refuse_link(folder.parent)
    try:
        folder.parent.mkdir(exist_ok=True)
        remove_leftovers(folder)
        _require_space(bundle)
        with folder_beside(folder) as temporary:
            for name, make in zip(FILES, (build_decoder_engine, build_compact_engine), strict=True):
                say(f"building {name}")
                options = dataclasses.replace(options, timings=_read(timings, LARGEST_TIMINGS))
                one = make(api, bundle, options)
                (temporary / name).write_bytes(one.engine)
                with beside(timings) as path:
                    path.write_bytes(one.timings)
            files = {name: file_info(temporary / name) for name in FILES}
            facts = _facts(bundle, api, device, files)
            text = json.dumps(dataclasses.asdict(facts), indent=1)
            (temporary / FACTS).write_text(text + "\n", encoding="utf-8")
        _remove_outdated(folder, bundle)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise BundleError(
            f"the engine could not be written to {folder.parent} ({reason}); free some space, or "
            "copy the bundle to where you may write."
        ) from None
    return Engines(folder)


def _folder(bundle: Bundle, api: Any, device: Device) -> Path:
    gpu = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")[:40]
    capability = "".join(map(str, device.compute_capability))
    version = re.sub(r"[^0-9A-Za-z.]+", "-", str(api.__version__))[:20]
    name = f"tensorrt-{version}-{gpu}-sm{capability}-{bundle.identity[:16]}"
    return bundle.folder.absolute() / "engines" / name


def _facts(bundle: Bundle, api: Any, device: Device, files: dict[str, FileInfo]) -> Facts:
    version, identity = str(api.__version__), bundle.identity
    return Facts(version, device.name, device.compute_capability, identity, files)


def disk_needed(bundle: Bundle) -> int:
    """Most bytes the engines take: 1.45 times the weights, and the compact one little."""
    return sum(info.size for info in bundle.manifest.files.values()) * 3 // 2


def _require_space(bundle: Bundle) -> None:
    needed = disk_needed(bundle)
    free = shutil.disk_usage(bundle.folder).free
    if free < needed:
        raise BundleError(
            f"{bundle.folder} has {free >> 20:,} MiB free but the engine may take "
            f"{needed >> 20:,} MiB; free some space."
        )


def _refuse_link(engines: Path) -> None:
    """Whoever made the bundle must not choose what is written, or removed, elsewhere."""
    if engines.is_symlink():
        raise BundleError(f"{engines} is a link; a bundle holds its own engines: remove the link.")


def _read(path: Path, largest: int) -> bytes:
    """A file's content; empty when there is none, or a far larger one than should be."""
    if not path.is_file() or path.stat().st_size > largest:
        return b""
    return path.read_bytes()


def _remove_outdated(folder: Path, bundle: Bundle) -> None:
    for other in folder.parent.glob("tensorrt-*-*"):
        if other.is_dir() and not other.name.endswith(bundle.identity[:16]):
            shutil.rmtree(other, ignore_errors=True)
