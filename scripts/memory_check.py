"""Compares what `edgechat plan` says of a CPU bundle with what conversations really take.

    python scripts/memory_check.py BUNDLE... [--window 1536] [--chunk 256]

Each conversation runs in a process of its own, whose highest resident memory (VmHWM, Linux) is
read twice: after "hi", when weights, KV cache and program are there, and after long messages that
fill the cache, make it evict and recall, and an edit. --window and --chunk may be repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

from edgechat.benchmark import peak_memory
from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.memory_plan import MIB, plan_memory
from edgechat.settings import Settings, load_profile

AT_ONCE = ("weights", "KV cache", "program")
CHARACTERS = 2.2  # a token of the window: a message that nearly fills it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--window", action="append", type=int, help="default: 1536")
    parser.add_argument("--chunk", action="append", type=int, help="default: 256")
    args = parser.parse_args()
    print("| bundle | window | chunk | hi, MiB | planned | long talk, MiB | planned |")
    print("|---|---|---|---|---|---|---|")
    for bundle in args.bundles:
        for window in args.window or [1536]:
            for chunk in args.chunk or [256]:
                print(_row(bundle, window, chunk), flush=True)


def measure(bundle: Path, window: int, chunk: int) -> list[int]:
    """Peak resident bytes after "hi" and after a long talk."""
    code = f"import sys, {Path(__file__).stem} as check; check.talk(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle.resolve()), str(window), str(chunk)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: list[int] = json.loads(done.stdout)
    return found


def _row(bundle: Path, window: int, chunk: int) -> str:
    measured = measure(bundle, window, chunk)
    plan = plan_memory(load_bundle(bundle).manifest, _settings(window, chunk))
    at_once = sum(item.bytes for item in plan.talking if item.name in AT_ONCE)
    cells = [bundle.name, f"{window:,}", f"{chunk}"]
    for found, planned in zip(measured, (at_once, plan.talking_bytes), strict=True):
        cells += [f"{found / MIB:,.0f}", f"{planned / MIB:,.0f} ({planned / found - 1:+.0%})"]
    return f"| {' | '.join(cells)} |"


def _settings(window: int, chunk: int) -> Settings:
    return dataclasses.replace(load_profile("chat"), cache_window=window, prefill_chunk=chunk)


def talk(bundle: str, window: str, chunk: str) -> None:
    """Prints [peak after "hi", peak at the end] in bytes."""
    loaded = load_bundle(bundle)
    settings = _settings(int(window), int(chunk))
    slots = settings.slots(loaded.manifest.max_capacity, False)
    text = (resources.files("edgechat.export.quantize") / "calibration.txt").read_text("utf-8")
    size = int(int(window) * CHARACTERS)
    text *= 1 + 8 * size // len(text)
    with Chat(loaded, settings, slots, None) as chat:
        chat.say("hi", max_tokens=3)
        peaks = [peak_memory()]
        for start in range(0, 7 * size, size):
            chat.say(f"{text[start : start + size]} What is this about?", max_tokens=5)
        last = len(chat.history) - 2
        chat.edit(last, chat.history[last][1].replace(" the ", " a ", 1))
        chat.say("And now?", max_tokens=5)
    print(json.dumps([*peaks, peak_memory()]))


if __name__ == "__main__":
    main()
