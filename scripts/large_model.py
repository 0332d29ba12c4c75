"""Export a model of more than 2 GB of weights and measure what that takes.

A random Llama of 1.24 billion parameters (the sizes of Llama 3.2 1B) is written as bfloat16
shards, exported by the command line in a process of its own, opened by onnx.checker and run.

    python scripts/large_model.py --folder SCRATCH     # 5 GB of disk; --layers N for a smaller one
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from safetensors.numpy import save_file
from tiny_models import write_tokenizer

from edgechat import Chat
from edgechat.bundle import load_bundle

LLAMA_3_2_1B: dict[str, Any] = dict(
    model_type="llama",
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    tie_word_embeddings=True,
    eos_token_id=2,
)
MIB = 1 << 20
# Runs the command line, then tells the most memory its process ever had resident.
CHILD = """
import re, sys
from pathlib import Path
from edgechat.cli import main
try:
    main()
finally:
    status = Path("/proc/self/status").read_text()
    print("peak", re.search(r"VmHWM:\\s+(\\d+) kB", status)[1], file=sys.stderr)
"""


def write_large_model(folder: Path, config: dict[str, Any], seed: int = 0) -> int:
    """Random bfloat16 weights, a shard for each layer and one for the rest; returns how many."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    of_layer = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shards: list[dict[str, tuple[int, ...]]] = [
        {f"model.layers.{index}.{name}.weight": shape for name, shape in of_layer.items()}
        for index in range(config["num_hidden_layers"])
    ]
    table = (config["vocab_size"], hidden)
    shards.append({"model.embed_tokens.weight": table, "model.norm.weight": (hidden,)})
    places, count = {}, 0
    for number, shapes in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _random(random, shape) for name, shape in shapes.items()}
        save_file(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
        count += sum(tensor.size for tensor in tensors.values())
    index = {"metadata": {"total_size": 2 * count}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return count


def _random(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    if len(shape) == 1:
        return np.ones(shape, dtype=ml_dtypes.bfloat16)
    values = random.standard_normal(shape, dtype=np.float32) / np.sqrt(np.float32(shape[1]))
    return values.astype(ml_dtypes.bfloat16)


def largest_layer(config: dict[str, Any]) -> int:
    """Bytes, as stored, of the largest layer: a decoder layer or the embedding."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    layer = 2 * hidden * (hidden + kv) + 3 * hidden * inner
    return 2 * max(layer, config["vocab_size"] * hidden)


def export(folder: Path, target: Path, *options: str) -> tuple[int, float]:
    """``edgechat export`` in a process of its own: its peak memory in bytes, and seconds."""
    command = [sys.executable, "-c", CHILD, "export", str(folder), "-o", str(target), *options]
    started = time.monotonic()
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return int(done.stderr.rsplit("peak ", 1)[1]) << 10, time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="must not exist yet")
    parser.add_argument("--layers", type=int, default=LLAMA_3_2_1B["num_hidden_layers"])
    parser.add_argument("--precision", default="int8")
    args = parser.parse_args()
    config = {**LLAMA_3_2_1B, "num_hidden_layers": args.layers}
    source, target = args.folder / "model", args.folder / "bundle"
    count = write_large_model(source, config)
    peak, seconds = export(source, target, "--precision", args.precision)
    onnx.checker.check_model(str(target / "model.onnx"))
    with Chat.open(target, max_tokens=20) as chat:
        reply = chat.say("Hello!")
    stored = sum(info.size for info in load_bundle(target).manifest.files.values())
    allowed = 2 * largest_layer(config) + 1500 * 10**6
    rows = {
        "parameters": f"{count / 1e9:.2f} billion, {2 * count / 1e9:.2f} GB in bfloat16",
        "bundle": f"{stored / 1e9:.2f} GB ({args.precision}), opened by onnx.checker",
        "export": f"{seconds:,.0f} s",
        "peak memory": f"{peak / 1e6:,.0f} MB",
        "allowed": f"{allowed / 1e6:,.0f} MB: twice the largest layer and 1.5 GB",
        "reply": f"{reply.usage.reply_tokens} tokens at {reply.usage.tokens_per_second:.1f} tok/s",
    }
    for name, value in rows.items():
        print(f"{name:12} {value}")
    if peak > allowed:
        raise SystemExit("the export took more memory than allowed")


if __name__ == "__main__":
    main()
