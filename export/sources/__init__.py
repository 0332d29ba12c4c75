"""Where models come from. ``open_source`` turns what the user typed into a Source."""

from __future__ import annotations

from pathlib import Path

from edgechat.errors import SettingsError, SourceError
from edgechat.export.sources.adapter import AdaptedSource
from edgechat.export.sources.base import Source, TextFiles
from edgechat.export.sources.gguf_file import GGUFFile
from edgechat.export.sources.hf_folder import HFFolder
from edgechat.export.sources.hub import (
    Say,
    download,
    looks_like_hub_id,
    looks_like_revision,
    smollm2,
)

__all__ = ["Source", "TextFiles", "open_source"]


def open_source(
    model: str, say: Say, adapter: Path | None = None, revision: str | None = None
) -> Source:
    """The source for a folder, a ``.gguf`` file, a hub id or the alias ``smollm2``.

    A path that exists always wins over a hub id, of which ``revision`` is a branch, tag or
    commit. ``say`` receives one line for each fetch. ``adapter`` is a PEFT LoRA folder that is
    merged into the model.
    """
    base = _open(model, say, revision)
    return base if adapter is None else AdaptedSource(base, adapter)


def _open(model: str, say: Say, revision: str | None) -> Source:
    path = Path(model).expanduser()
    is_hub_id = not path.exists() and path.suffix != ".gguf" and looks_like_hub_id(model)
    if revision is not None and not is_hub_id:
        raise SettingsError(
            f"--revision {revision} is for hub ids such as HuggingFaceTB/SmolLM2-135M-Instruct; "
            f"{model} is none."
        )
    if revision is not None and not looks_like_revision(revision):
        raise SettingsError(f"--revision {revision!r} is no branch, tag or commit.")
    if is_hub_id:
        folder = download(model, say, revision)
        return HFFolder(folder, name=model, kind=f"hub, commit {folder.name}")
    if path.exists():
        return _open_path(path)
    if model == "smollm2":
        return _open_path(smollm2(say), name="SmolLM2-135M-Instruct")
    raise SourceError(
        f"{model} does not exist; give a Hugging Face folder, a .gguf file, a hub id such as "
        "HuggingFaceTB/SmolLM2-135M-Instruct, or the alias smollm2."
    )


def _open_path(path: Path, name: str | None = None) -> Source:
    if path.is_dir():
        return HFFolder(path, name)
    return GGUFFile(path, name)
