"""Models that optimum exports: real ones of it, in an environment like a user's own for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import write_tokenizer
from transformers import AutoModelForCausalLM

from edgechat import Chat, SamplingSettings
from edgechat.bundle import load_bundle
from edgechat.runtime.growing_engine import GrowingEngine
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.policies import make_policy
from edgechat.settings import Settings
from edgechat.verify import verify

REPOSITORY = Path(__file__).resolve().parents[2]
# What `pip install 'edgechat[export,optimum]'` takes that differs from the tests' own packages.
PACKAGES = ["optimum-onnx>=0.1,<0.2", "optimum>=2.1,<2.2", "transformers>=4.57,<4.58"]
PACKAGES += ["tokenizers>=0.22,<0.23", "huggingface_hub>=0.34,<1"]
COMMON: dict[str, Any] = dict(
    vocab_size=320, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.2
)
# Positions are learned; or keys are turned inside the graph, with settings as transformers 5 writes
# them; or distances weigh on attention.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", dict(n_embd=64, n_layer=3, n_head=4, n_positions=128)),
    "cohere": (
        "Cohere",
        dict(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
            max_position_embeddings=128,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            logit_scale=1.0,
        ),
    ),
    "bloom": ("Bloom", dict(hidden_size=64, n_layer=2, n_head=4, seq_length=128)),
}
# One process, for loading optimum takes longer than all it exports here.
EXPORT = """
from edgechat.cli.app import app
from edgechat.errors import EdgechatError
for args in {}:
    try:
        app(["export", *args, "--exporter", "optimum"], standalone_mode=False)
    except EdgechatError as error:
        print(error)
"""
WINDOW = ["--policy", "window", "--recall-blocks", "0"]
GREEDY = SamplingSettings(temperature=0, repeat_penalty=1)
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="session")
def optimum() -> dict[str, str]:
    """The environment variables with which Python finds optimum and the transformers it wants."""
    folder = REPOSITORY / ".test" / "optimum"
    if not folder.is_dir():
        partial = folder.with_name(f"optimum-{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--target", str(partial), *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(partial, ignore_errors=True)
            pytest.skip(f"optimum cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
        partial.rename(folder)
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


@dataclass
class Exported:
    """By name the Hugging Face folder and the bundle the command made of it; ``refused``: what it
    said of the others, a line each."""

    pairs: dict[str, tuple[Path, Path]]
    refused: list[str]


@pytest.fixture(scope="session")
def exported(optimum: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    root = tmp_path_factory.mktemp("optimum")
    pairs = {name: (root / name, root / f"{name}-bundle") for name in MODELS}
    for name, (kind, values) in MODELS.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**COMMON, **values)
        AutoModelForCausalLM.from_config(config).save_pretrained(pairs[name][0])
        write_tokenizer(pairs[name][0])
    commands = [[str(folder), "-o", str(bundle)] for folder, bundle in pairs.values()]
    gpt2, target = pairs["gpt2"][0], str(root / "x")
    commands.append([str(gpt2), "--capacity", "500", "-o", target])
    for model_type in ("mystery", "mamba"):
        folder = shutil.copytree(gpt2, root / model_type)
        config = {**json.loads((gpt2 / "config.json").read_text()), "model_type": model_type}
        (folder / "config.json").write_text(json.dumps(config))
        commands.append([str(folder), "-o", target])
    done = subprocess.run(
        [sys.executable, "-c", EXPORT.format(commands)],
        capture_output=True,
        text=True,
        env=optimum,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("talk to it: edgechat run") == len(MODELS), done.stderr
    assert not list(root.glob("*x*"))
    return Exported(pairs, done.stdout.splitlines())


@pytest.mark.parametrize("name", MODELS)
def test_the_bundle_is_trusted(name: str, exported: Exported) -> None:
    folder, bundle = exported.pairs[name]
    assert [check.name for check in verify(load_bundle(bundle), folder) if not check.passed] == []


@pytest.mark.parametrize("name", MODELS)
def test_after_compactions_the_model_has_read_what_the_slots_hold(
    name: str, exported: Exported
) -> None:
    """Keys that cannot be moved are made anew: transformers, given the kept tokens, agrees."""
    folder, bundle = exported.pairs[name]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    cache = KVCache(GrowingEngine(load_bundle(bundle), 48), make_policy("window", 4))
    ids = np.random.default_rng(1).integers(3, 259, size=150)
    for piece in np.split(ids, [60, 61, 62, 80, *range(90, 130)]):
        for logits in cache.feed_chunks(piece, all_logits=True):
            kept = torch.from_numpy(ids[cache.slots.index])[None]
            with torch.no_grad():
                expected = model(kept).logits[0, -len(logits) :].numpy()
            assert np.abs(logits - expected).max() < 1e-3
    assert cache.evicted > 90
    assert cache.slots.index[:4].tolist() == [0, 1, 2, 3]


def test_a_conversation_with_all_that_chats_can(exported: Exported, tmp_path: Path) -> None:
    """Behind evictions, an edit, a fork and a session the next reply is that of a fresh chat
    which reads the same tokens."""
    folder, bundle = exported.pairs["gpt2"]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    settings = Settings(policy="window", recall_blocks=0, sampling=GREEDY, max_tokens=12)

    def check(chat: Chat) -> None:
        chat.say("and now?")
        cache, ids = chat._conversation.cache, chat._conversation.transcript.ids
        with torch.no_grad():
            expected = model(torch.from_numpy(ids[cache.slots.index])[None]).logits[0, -1]
        assert cache.logits is not None
        assert np.abs(cache.logits - expected.numpy()).max() < 1e-3

    chat = Chat(load_bundle(bundle), settings, 100, "s")
    for text in ("hello", "how are you today?", "tell me more"):
        check(chat)
        chat.say(text)
    assert chat._conversation.cache.evicted > 0
    fork = chat.fork()
    chat.save(tmp_path / "session")
    chat.edit(2, "how is she?")
    check(chat)
    chat.undo()
    check(chat)
    check(fork)
    resumed = Chat.load(bundle, tmp_path / "session")
    check(resumed)
    assert resumed.history == fork.history


def test_the_command_runs_it_and_says_what_it_cannot(run: Run, exported: Exported) -> None:
    bundle = exported.pairs["gpt2"][1]
    prompts = ["--prompt", "hello", "--prompt", "and again", "--window", "60", "-n", "30"]
    done = run("run", bundle, *WINDOW, *prompts, "--json", "--seed", "1")
    _, second = (json.loads(line)["usage"] for line in done.stdout.splitlines())
    assert second["reused_tokens"] > 0 and second["evicted_tokens"] > 0
    assert "tells no importance" not in done.stderr
    told = json.loads(run("inspect", bundle, "--json", *WINDOW).stdout)
    assert told["abilities"] == {"in_place": False, "moves_keys": False}
    assert told["graph"]["dialect"] == "optimum"
    two = 2 * 2 * 3 * 4 * 16 * 4  # past and present; keys and values; layers, heads, size, bytes
    assert told["memory_plan"]["kv_bytes_per_slot"] == two
    assert "what stays is read again" in run("inspect", bundle).stdout
    for options in ([], ["--policy", "window"], ["--policy", "key", "--recall-blocks", "0"]):
        refused = run("run", bundle, "--prompt", "a", *options, code=1)
        assert "--policy window --recall-blocks 0" in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_what_cannot_be_exported_so_is_refused_in_one_sentence(
    run: Run, exported: Exported, tiny_folder: Path, tmp_path: Path
) -> None:
    gpt2 = exported.pairs["gpt2"][0]
    target = ["--exporter", "optimum", "-o", str(tmp_path / "x")]
    for model, options, message in (
        (gpt2, [], "--exporter optimum"),
        (gpt2, ["--exporter", "magic"], "'magic'"),
        (gpt2, target, "edgechat[export,optimum]"),  # which is not in this environment
        (gpt2, [*target, "--int8"], "fp32"),
        (gpt2, [*target, "--target", "jetson-jp7", "-p", "fp32"], "CPU"),
        (tiny_folder, target, "leave --exporter optimum out"),
    ):
        done = run("export", model, *options, code=1)
        assert message in done.stderr
        assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert not list(tmp_path.iterdir())
    too_long, unknown, other = exported.refused
    assert "128 positions" in too_long
    assert "optimum cannot export this mystery model" in unknown
    assert "weights are missing" in other


def test_a_graph_of_another_contract_is_refused(
    exported: Exported, tmp_path: Path, run: Run
) -> None:
    folder = shutil.copytree(exported.pairs["gpt2"][1], tmp_path / "b")
    manifest = json.loads((folder / "edgechat.json").read_text())
    manifest["dims"]["head_dim"] = 32
    (folder / "edgechat.json").write_text(json.dumps(manifest))
    done = run("run", folder, "--prompt", "a", *WINDOW, code=1)
    assert "contract" in done.stderr
