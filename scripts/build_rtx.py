"""Builds Jetson bundles with TensorRT-RTX, on a PC and with no GPU, and prints a table.

    pip install 'edgechat[export,rtx]'
    python scripts/build_rtx.py BUNDLE... [--gpu SM86 --gpu SM120]

It is NVIDIA's parser and builder but not JetPack's, for other GPUs: what it takes, the device's
TensorRT may still refuse. "int8 weights" are all there are, the embedding's too.
"""

from __future__ import annotations

import argparse
import time

from edgechat.bundle import Bundle, load_bundle
from edgechat.export.rtx_builder import GPUS, build_compact_engine, build_decoder_engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE")
    parser.add_argument("--gpu", action="append", choices=GPUS, help="default: SM86 and SM120")
    args = parser.parse_args()
    heads = "bundle | GPU | engine | / int8 weights | cache updates | fused attention"
    print(f"| {heads} | fused float-by-int8 products | built in |")
    print("|---|---|---|---|---|---|---|---|")
    for folder in args.bundles:
        bundle = load_bundle(folder)
        for gpu in args.gpu or ("SM86", "SM120"):
            print(_row(bundle, gpu), flush=True)


def _row(bundle: Bundle, gpu: str) -> str:
    start = time.monotonic()
    built = build_decoder_engine(bundle, gpu)
    seconds = time.monotonic() - start
    build_compact_engine(bundle, gpu)
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
