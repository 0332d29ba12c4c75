"""What every worker shares: one JSON line in, one JSON line out, and the work that is timed.

The timed work is written once, here, so that every peer does exactly the same: the same token
ids, the same untimed preparation, greedy choice of the next token (end-of-text is ignored: it is
only a token id), the clock read around the same calls. A peer supplies the two methods of `Peer`.

Standard library only: a worker imports this file inside the peer's own virtual environment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TextIO

# Ids every SmolLM2 tokenizer has, clear of the special tokens at the start of the vocabulary.
FIRST_ID, LAST_ID = 1_000, 40_000
# Fed before a timed prefill, untimed: wakes the threads and brings the weights back near the
# cores, which another peer used a moment ago.
WARM_TOKENS = 64


class Peer(Protocol):
    """A loaded model with one KV cache."""

    info: dict[str, str]

    def reset(self) -> None:
        """Forget every token; keep the buffers."""

    def feed(self, tokens: list[int]) -> int:
        """Append tokens to the cache and return the likeliest next token."""

    def decode(self, token: int, count: int) -> None:
        """Take `count` greedy steps, the first of which feeds `token`."""


class GreedyDecode:
    """The decode loop of the peers that have no loop of their own."""

    def feed(self, tokens: list[int]) -> int:
        raise NotImplementedError

    def decode(self, token: int, count: int) -> None:
        for _ in range(count):
            token = self.feed([token])


def token_ids(count: int, seed: int = 0) -> list[int]:
    """Pseudo-random ids, the same for every peer: speed does not depend on what is said."""
    source = random.Random(seed)
    return [source.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def prefill(peer: Peer, tokens: int) -> dict[str, Any]:
    """Seconds from an empty cache to the first predicted token."""
    peer.reset()
    peer.feed(token_ids(WARM_TOKENS, seed=1))
    peer.reset()
    prompt = token_ids(tokens)
    start = time.perf_counter()
    peer.feed(prompt)
    return {"seconds": time.perf_counter() - start}


def decode(peer: Peer, history: int, tokens: int) -> dict[str, Any]:
    """Seconds for `tokens` greedy steps after `history` tokens, whose prefill is not timed."""
    peer.reset()
    token = peer.feed(token_ids(history))
    start = time.perf_counter()
    peer.decode(token, tokens)
    return {"seconds": time.perf_counter() - start}


def turn(peer: Peer, tokens: int, reply: int, fresh: bool) -> dict[str, Any]:
    """One turn of a dialogue: ``tokens`` new ids and a ``reply``, after what the cache holds.

    With ``fresh`` the cache is emptied first, within the clock, and ``tokens`` counts the whole
    history: what a program does that keeps no cache between turns.
    """
    ids = token_ids(tokens)
    start = time.perf_counter()
    if fresh:
        peer.reset()
    token = peer.feed(ids)
    first = time.perf_counter()
    peer.decode(token, reply)
    return {"first": first - start, "seconds": time.perf_counter() - start}


def check(peer: Peer) -> dict[str, Any]:
    """What comes next in a phrase said four times: any sound copy of the weights agrees."""
    phrase = token_ids(16, seed=2)
    peer.reset()
    return {"token": peer.feed(phrase * 4 + phrase[:8]), "expected": phrase[8]}


def private_stdout() -> TextIO:
    """Keep stdout for answers: native libraries that print to it reach stderr instead."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(make: Callable[[argparse.Namespace], Peer]) -> None:
    """Load the peer, say so, then answer requests until stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--capacity", type=int, required=True, help="cache slots to allocate")
    parser.add_argument("--variant", default="", help="a setting that the worker knows")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a worker ends
    answers = private_stdout()
    actions: dict[str, Callable[..., dict[str, Any]]] = {
        "prefill": prefill,
        "decode": decode,
        "check": check,
        "turn": turn,
    }
    peer = make(args)
    print(json.dumps({"ready": peer.info}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        action = actions[request.pop("do")]
        print(json.dumps(action(peer, **request)), file=answers)
