"""Whether a bundle says what the model it was made from says in transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import yaml
from numpy.typing import NDArray

from edgechat.assembly import make_engine
from edgechat.bundle import ON_CPU, Bundle
from edgechat.errors import TemplateError
from edgechat.graph_runner import CHUNK, GraphRunner
from edgechat.runtime.cores import usable_cores
from edgechat.runtime.engine import Logits
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.policies import make_policy
from edgechat.runtime.text import TextCodec, Turn

if TYPE_CHECKING:
    from edgechat.verify_reference import Reference

Ids = NDArray[np.int64]
TOKENS = 512  # whose logits are compared
BEYOND = 256  # of them lie beyond the longest sliding window
SINGLE = 32  # the last of them are fed one by one, as in a conversation
REPLY = 24  # tokens of greedy text
REBUILT = 0.9  # of the texts, where transformers itself only guesses the tokenizer
ROWS = 32  # positions compared at once: vocabularies are large


@dataclass(frozen=True)
class Limits:
    """What a precision may cost: difference of a logit as a share of the largest one, share of
    positions with the same most probable token, mean KL divergence, and by how much the
    reference may prefer its own token where greedy texts part; the last two in nats."""

    logits: float
    top1: float
    kl: float
    tie: float


# float: what another order of summation does; quantised: three to six times what they cost on
# SmolLM2-135M, a small model, and about what good 4-bit files of larger ones cost
LIMITS = {
    "fp32": Limits(logits=1e-4, top1=0.99, kl=1e-5, tie=0.01),
    "fp16": Limits(logits=2e-2, top1=0.97, kl=1e-3, tie=0.1),
    "int8-weight": Limits(logits=math.inf, top1=0.9, kl=0.02, tie=1.0),
    "int8": Limits(logits=math.inf, top1=0.9, kl=0.03, tie=1.0),
}


@dataclass(frozen=True)
class Check:
    """One line of the table: ``found`` must keep to ``allowed``, which ``passed`` tells;
    ``values`` are the plain numbers behind it, ``note`` says where it first went wrong."""

    name: str
    found: str
    allowed: str
    passed: bool
    values: dict[str, float | int | None]
    note: str = ""


class Reader(Protocol):
    """A bundle that reads tokens."""

    def restart(self) -> None:
        """Forget what was read."""

    def feed(self, ids: Ids) -> Iterator[Logits]:
        """Logits of successive pieces of ``ids``, [S, V]."""


class CacheReader:
    """A bundle in its own engine."""

    def __init__(self, bundle: Bundle, capacity: int) -> None:
        self._engine = make_engine(bundle, capacity)
        self.restart()

    def restart(self) -> None:
        self._cache = KVCache(self._engine, make_policy("full", 0))

    def feed(self, ids: Ids) -> Iterator[Logits]:
        return self._cache.feed_chunks(ids, all_logits=True)


class GraphReader:
    """A GPU bundle's graphs on the CPU."""

    def __init__(self, bundle: Bundle) -> None:
        self._runner = GraphRunner(bundle, usable_cores())

    def restart(self) -> None:
        self._runner.length = 0

    def feed(self, ids: Ids) -> Iterator[Logits]:
        for start in range(0, len(ids), CHUNK):
            yield self._runner.step(ids[start : start + CHUNK])["logits"]


def verify(
    bundle: Bundle, reference: Path, say: Callable[[str], None] = lambda what: None
) -> list[Check]:
    """Compare logits, greedy text, chat template and tokenizer with transformers'.

    ``say`` gets what is being done. Raises SourceError or SettingsError when ``reference`` cannot
    be loaded or is another model, ModuleNotFoundError without torch and transformers.
    """
    from edgechat.verify_reference import Reference

    manifest = bundle.manifest
    say("loading the reference")
    original = Reference(reference, manifest)
    texts = _texts()
    codec = TextCodec(bundle)
    limits = LIMITS["int8" if manifest.kv_dtype == "int8" else manifest.precision]
    window = getattr(original.config, "sliding_window", None) or 0
    count = min(max(TOKENS, window + BEYOND), manifest.max_capacity, manifest.dims.context_length)
    say("loading the bundle")
    reader: Reader
    if manifest.graph.dialect not in ON_CPU:
        reader = GraphReader(bundle)
    else:
        reader = CacheReader(bundle, count)
    say(f"reading {count:,} tokens")
    checks = _compare_logits(reader, original, _passage(codec, texts["passage"], count), limits)
    prompts = [_prompt(codec, text)[: count - REPLY] for text in texts["prompts"]]
    say("answering prompts")
    checks.append(_compare_greedy(reader, original, codec, prompts, limits))
    say("comparing texts")
    checks.append(_compare_templates(codec, original, texts["conversations"]))
    checks.append(_compare_tokens(codec, original, texts))
    return checks


def _texts() -> dict[str, Any]:
    text = (resources.files("edgechat") / "verify_texts.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def _passage(codec: TextCodec, text: str, count: int) -> Ids:
    """``count`` tokens of ``text``, which begins again when it is too short."""
    ids = codec.encode_text(text)
    return np.concatenate([ids, *[codec.encode(text)] * (count // len(ids))])[:count]


def _prompt(codec: TextCodec, text: str) -> Ids:
    return (
        codec.encode_text(text)
        if codec.template is None
        else codec.prompt([Turn("user", text)]).ids
    )


def _compare_logits(reader: Reader, reference: Reference, ids: Ids, limits: Limits) -> list[Check]:
    """Of the last TOKENS of ``ids``, read in pieces and then one by one."""
    last = min(TOKENS, len(ids))
    expected = reference.logits(ids, last)
    reader.restart()
    pieces = [ids[: len(ids) - SINGLE], *np.split(ids[len(ids) - SINGLE :], SINGLE)]
    difference = agreement = divergence = 0.0
    place = last - len(ids)
    for piece in pieces:
        for logits in reader.feed(piece):
            for start in range(max(0, -place), len(logits), ROWS):
                mine = logits[start : start + ROWS].astype(np.float64)
                theirs = expected[place + start : place + start + len(mine)].astype(np.float64)
                difference = max(difference, float(np.abs(mine - theirs).max()))
                agreement += float((mine.argmax(1) == theirs.argmax(1)).sum()) / last
                log_p, log_q = _log_softmax(mine), _log_softmax(theirs)
                divergence += float((np.exp(log_q) * (log_q - log_p)).sum()) / last
            place += len(logits)
    largest = max(1.0, float(np.abs(expected).max())) * limits.logits
    values = {"difference": difference, "limit": largest if math.isfinite(largest) else None}
    return [
        Check(
            "logit difference",
            f"{difference:.1e}",
            f"up to {largest:.1e}" if math.isfinite(largest) else "any",
            difference <= largest,
            {**values, "tokens": last, "read": len(ids)},
            f"{last:,} positions" + (f", the last of {len(ids):,}" if len(ids) > last else ""),
        ),
        Check(
            "top-1 agreement",
            f"{agreement:.1%}",
            f"from {limits.top1:.0%}",
            agreement >= limits.top1,
            {"agreement": agreement, "limit": limits.top1},
        ),
        Check(
            "KL divergence",
            f"{divergence:.1e}",
            f"up to {limits.kl:g}",
            divergence <= limits.kl,
            {"divergence": divergence, "limit": limits.kl},
        ),
    ]


def _compare_greedy(
    reader: Reader, reference: Reference, codec: TextCodec, prompts: list[Ids], limits: Limits
) -> Check:
    """Until the first token that differs, and how much the reference preferred its own there."""
    same, worst, notes = 0, 0.0, []
    first: int | None = None
    for number, ids in enumerate(prompts, 1):
        tokens, logits = reference.greedy(ids, REPLY, codec.eos)
        reader.restart()
        fed = ids
        for place, token in enumerate(tokens):
            *_, mine = reader.feed(fed)
            choice = int(mine[-1].argmax())
            if choice != token:
                preferred = float(logits[place, token] - logits[place, choice])
                worst, first = max(worst, preferred), min(first or REPLY, place + 1)
                notes.append(
                    f"prompt {number}: token {place + 1} is {codec.decode([choice])!r} for "
                    f"{codec.decode([token])!r}, which was {preferred:.2g} nats likelier"
                )
                break
            fed = np.array([token])
        else:
            same += 1
    return Check(
        "greedy text",
        f"{same} of {len(prompts)} the same",
        f"parts at {limits.tie:g} nats",
        worst <= limits.tie,
        {"same": same, "prompts": len(prompts), "first_difference": first, "preferred": worst},
        "; ".join(notes),
    )


def _compare_templates(
    codec: TextCodec, reference: Reference, conversations: list[list[dict[str, str]]]
) -> Check:
    if not reference.has_template:
        note = "the reference has no chat template to compare with"
        return Check("chat template", "not compared", "", True, {}, note)
    same, note = 0, ""
    for number, messages in enumerate(conversations, 1):
        mine, theirs = _render(codec, messages), reference.render(messages)
        if mine == theirs:
            same += 1
        elif not note:
            note = f"conversation {number}: {_where(mine, theirs)}"
    return _count("chat template", same, len(conversations), note)


def _render(codec: TextCodec, messages: list[dict[str, str]]) -> str | None:
    if codec.template is None:
        return None
    try:
        return codec.template.render(messages)
    except TemplateError:
        return None


def _compare_tokens(codec: TextCodec, reference: Reference, texts: dict[str, Any]) -> Check:
    """Ids with and without what stands around a text, and the text that comes back of them."""
    rendered = [_render(codec, messages) for messages in texts["conversations"]]
    passages = [texts["passage"], *texts["prompts"], *texts["texts"]]
    given = [*passages, *(text for text in rendered if text is not None)]
    same, note = 0, ""
    for text in given:
        ids = codec.encode(text)
        pairs = [
            (ids, reference.encode(text, special=False)),
            (codec.encode_text(text).tolist(), reference.encode(text, special=True)),
            (codec.decode(ids), reference.decode(ids)),
        ]
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        if not differing:
            same += 1
        elif not note:
            note = f"{_short(text)}: {_where(*differing[0])}"
    share = 1.0
    if reference.rebuilds_tokenizer:
        share = REBUILT
        note += " (transformers makes this tokenizer by rules of its own)" if note else ""
    return _count("tokenizer", same, len(given), note, share)


def _count(name: str, same: int, of: int, note: str, share: float = 1.0) -> Check:
    values: dict[str, float | int | None] = {"same": same, "compared": of, "share": share}
    allowed = "all" if share == 1 else f"{share:.0%}"
    return Check(name, f"{same} of {of} the same", allowed, same >= share * of, values, note)


def _where(mine: Any, theirs: Any) -> str:
    """Where two texts or lists of ids part."""
    if mine is None or theirs is None:
        return "only the " + ("bundle's" if theirs is None else "reference's") + " takes it"
    count = min(len(mine), len(theirs))
    place = next((i for i in range(count) if mine[i] != theirs[i]), count)
    return f"{_short(mine[place:])} for {_short(theirs[place:])} at {place}"


def _short(value: Any) -> str:
    text = repr(value[:8] if isinstance(value, list) else value)
    return text if len(text) <= 40 else text[:36] + " ..."


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
