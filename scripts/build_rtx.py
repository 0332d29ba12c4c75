"""Builds Jetson bundles with TensorRT-RTX, on a PC and with no GPU, and prints a table.

    pip install 'edgechat[export,rtx]'
    python scripts/build_rtx.py BUNDLE... [--gpu SM86 --gpu SM120]
    python scripts/build_rtx.py BUNDLE... --perplexity BOOK [--tokens 8192]

It is NVIDIA's parser and builder but not JetPack's, for other GPUs: what it takes, the device's
TensorRT may still refuse. "int8 weights" are all there are, the embedding's too.

``--perplexity`` builds nothing and needs no ``rtx``: ONNX Runtime's CPU runs the graphs over the
first tokens of a book in windows of 2,048, or of the cache where that is shorter. Name a bundle
of ``--precision fp32`` first to see the others against it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from edgechat.bundle import Bundle, load_bundle
from edgechat.evaluate import read_ids
from edgechat.graph_runner import GraphRunner
from edgechat.runtime.cores import usable_cores
from edgechat.runtime.tensorrt.build import RTX_GPUS, build_ahead

CONTEXT = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE")
    parser.add_argument("--gpu", action="append", choices=RTX_GPUS, help="default: SM86 and SM120")
    parser.add_argument("--perplexity", type=Path, metavar="BOOK", help="measure, build nothing")
    parser.add_argument("--tokens", type=int, default=8192, help="of BOOK (default: 8192)")
    args = parser.parse_args()
    bundles = [load_bundle(folder) for folder in args.bundles]
    if args.perplexity:
        _measure(bundles, args.perplexity.read_text(encoding="utf-8"), args.tokens)
        return
    heads = "bundle | GPU | engine | / int8 weights | cache updates | fused attention"
    print(f"| {heads} | fused float-by-int8 products | built in |")
    print("|---|---|---|---|---|---|---|---|")
    for bundle in bundles:
        for gpu in args.gpu or ("SM86", "SM120"):
            print(_row(bundle, gpu), flush=True)


def _measure(bundles: Sequence[Bundle], text: str, tokens: int) -> None:
    print("| bundle | perplexity | over the first |")
    print("|---|---|---|")
    first = None
    for bundle in bundles:
        runner = GraphRunner(bundle, usable_cores())
        context = min(CONTEXT, bundle.manifest.max_capacity)
        found = runner.perplexity(read_ids(bundle, text, tokens), context)
        over = "" if first is None else f"{found / first - 1:+.2%}"
        first = first or found
        print(f"| {bundle.folder.name} | {found:.2f} | {over} |", flush=True)


def _row(bundle: Bundle, gpu: str) -> str:
    start = time.monotonic()
    built, _ = build_ahead(bundle, gpu)
    seconds = time.monotonic() - start
    manifest, megabytes = bundle.manifest, len(built.engine) / 1e6
    embedding = manifest.dims.vocab_size * manifest.dims.hidden_size
    weights = (manifest.weight_bytes_per_token + embedding) / 1e6
    ratio = f"{megabytes / weights:.2f}" if manifest.precision.startswith("int8") else ""
    profiles_and_layers = 2 * manifest.dims.num_layers
    cells = [
        bundle.folder.name,
        gpu,
        f"{megabytes:,.0f} MB",
        ratio,
        f"{built.cache_updates} of {profiles_and_layers}",
        f"{built.fused_attentions} of {profiles_and_layers}",
        f"{built.fused_weights}",
        f"{seconds:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
