"""Is what was said long ago still known? A password in a book, and facts in a conversation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import yaml

from edgechat.assembly import make_cache, make_engine, needs_importance
from edgechat.bundle import Bundle
from edgechat.errors import SettingsError
from edgechat.paths import read_text
from edgechat.runtime.conversation import Conversation
from edgechat.runtime.engine import Logits
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.policies import make_policy
from edgechat.runtime.sampling import Sampler, SamplingSettings
from edgechat.runtime.slots import inside
from edgechat.runtime.state import capture, restore
from edgechat.runtime.text import TextCodec, Turn
from edgechat.settings import Settings

PLANTED, ASKED = (
    " The secret password of the castle is {}.",
    " The secret password of the castle is",
)
BEFORE = 200  # tokens of the book in front of the password
ACKNOWLEDGED = "Okay, I will remember that."
TOLD = 3  # facts a conversation begins with
LONGEST_REPLY = 256
FILLER = 40  # turns between the facts and the question
SPARE = 128  # slots for question and answer
NAMES = ("full", "window", "key", "window+recall", "key+recall")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Fact:
    """``statement`` is what the user tells; ``same`` and ``other`` ask for ``answer`` in its words
    and in others; ``lead`` and ``lead_other`` begin the reply, up to the answer."""

    statement: str
    same: str
    other: str
    lead: str
    lead_other: str
    answer: str


@dataclass(frozen=True)
class Outcome:
    """One policy at one distance. ``loss``: nats of the right answer, mean; ``chosen``: share of
    questions whose right answer is likelier than those of all other facts; ``exact``: share whose
    greedy reply is the answer; ``found``: share where the fact was in the cache when answering.
    """

    test: str
    policy: str
    tokens: int
    questions: int
    loss: float
    chosen: float | None = None
    exact: float | None = None
    found: float | None = None


class Subject:
    """A bundle with one cache policy under test; ``tokens`` is the longest text to come."""

    def __init__(self, bundle: Bundle, name: str, settings: Settings, tokens: int) -> None:
        if name not in NAMES:
            raise SettingsError(f"policy {name!r} is unknown; choose from {', '.join(NAMES)}.")
        policy, _, recall = name.partition("+")
        blocks = settings.recall_blocks or Settings().recall_blocks
        self.settings = settings.override(policy=policy, recall_blocks=blocks if recall else 0)
        self.name, self._bundle, self.codec = name, bundle, TextCodec(bundle)
        most = bundle.manifest.max_capacity
        capacity = self.settings.cache_window + self.settings.sinks
        if policy == "full":
            capacity = tokens + SPARE
        if capacity > most:
            raise SettingsError(
                f"the test needs a cache of {capacity:,} tokens, the bundle allows {most:,}; "
                "export with --capacity or test shorter distances."
            )
        self.engine = make_engine(
            bundle,
            capacity,
            settings.threads,
            needs_importance(self.settings),
            settings.allow_fallback,
        )

    def cache(self) -> KVCache:
        return make_cache(self._bundle, self.settings, self.engine, self.codec)


def read_facts() -> tuple[list[Fact], list[str]]:
    """The facts and the passwords that come with edgechat."""
    text = (resources.files("edgechat") / "recall_facts.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    return [Fact(**fact) for fact in data["facts"]], [str(word) for word in data["passwords"]]


def password_test(
    subject: Subject, text: str, distances: Sequence[int], progress: Progress
) -> Iterator[Outcome]:
    """A sentence with a password, ``distance`` tokens of ``text``, then its beginning again."""
    codec = subject.codec
    book = codec.encode_text(text[: (max(distances) + BEFORE) * 16])
    if len(book) < max(distances) + BEFORE:
        raise SettingsError(
            f"the text has {len(book):,} tokens; the password test needs "
            f"{max(distances) + BEFORE:,}: give a longer one."
        )
    _, passwords = read_facts()
    question = np.asarray(codec.encode(ASKED))
    for distance in distances:
        losses, found = [], []
        for word in passwords:
            progress(f"password, {subject.name}, {distance:,} tokens: {word}")
            planted = np.asarray(codec.encode(PLANTED.format(word)))
            before, after = np.split(book[: BEFORE + distance], [BEFORE])
            cache = subject.cache()
            cache.feed(np.concatenate([before, planted, after]))
            turn = cache.fed
            cache.feed(question)
            if cache.recall((turn, cache.fed), subject.settings.recall_blocks, turn):
                cache.feed(question[cache.fed - turn :])
            answer = codec.encode(f" {word}")
            losses.append(-_log_likelihood(cache, answer))
            place = BEFORE + len(planted) - len(answer) - 1
            found.append(bool(inside(cache.slots.index, [(place, place + len(answer))]).any()))
        yield Outcome(
            "password",
            subject.name,
            distance,
            len(passwords),
            float(np.mean(losses)),
            found=float(np.mean(found)),
        )


def chat_test(
    subject: Subject, filler: Sequence[tuple[str, str]], tokens: int, progress: Progress
) -> Iterator[Outcome]:
    """Facts in the first turns, ``filler`` turns up to ``tokens``, then a question for each fact.

    Facts are dealt out so that those of one conversation are of different kinds.
    """
    facts, _ = read_facts()
    rounds = len(facts) // TOLD
    codec = subject.codec
    answers = [codec.encode(f" {fact.answer}") for fact in facts]
    sampler = Sampler(SamplingSettings(temperature=0), codec.size)
    results: dict[str, list[tuple[float, bool, bool, bool]]] = {"same": [], "other": []}
    upkeep = subject.settings.upkeep()
    sibling = subject.engine.sibling()
    for number in range(rounds):
        told = [(i, facts[i]) for i in range(number, rounds * TOLD, rounds)]
        talk = Conversation(subject.cache(), codec, upkeep=upkeep)
        for _, fact in told:
            talk.turns += [Turn("user", fact.statement), Turn("assistant", ACKNOWLEDGED)]
        for question, reply in _fit(codec, talk.turns, filler, tokens):
            talk.turns += [Turn("user", question), Turn("assistant", reply)]
        spans = talk.prompt().spans
        offset = len(spans) - len(talk.turns)
        last = talk.turns[-2].content
        del talk.turns[-2:]
        list(talk.stream(last, sampler, 0))
        talk.turns[-1] = Turn("assistant", ACKNOWLEDGED)
        for place, (right, fact) in enumerate(told):
            said = spans[offset + 2 * place]
            assert said is not None
            for kind in ("same", "other"):
                progress(f"chat, {subject.name}, {tokens:,} tokens: fact {right + 1}")
                cache = subject.cache()
                cache.engine = sibling
                ask = Conversation(cache, codec, upkeep=upkeep)
                restore(ask, capture(talk))
                list(ask.stream(fact.same if kind == "same" else fact.other, sampler, 0))
                found = bool(inside(cache.slots.index, [said]).any())
                lead = fact.lead if kind == "same" else fact.lead_other
                cache.feed(np.asarray(codec.encode(lead)))
                scores = [_log_likelihood(cache, answer) for answer in answers]
                best = int(np.argmax(scores)) == right
                exact = _greedy(cache, len(answers[right])) == answers[right]
                results[kind].append((-scores[right], best, exact, found))
    for kind, rows in results.items():
        loss, chosen, exact_share, found_share = np.mean(np.array(rows, dtype=float), axis=0)
        yield Outcome(
            f"chat, {kind} words",
            subject.name,
            tokens,
            len(rows),
            float(loss),
            float(chosen),
            float(exact_share),
            float(found_share),
        )


def make_filler(
    bundle: Bundle, questions: Path, progress: Progress, allow_fallback: bool = False
) -> list[tuple[str, str]]:
    """Small talk: the questions of a JSONL file (``turns``: a list of texts) and the bundle's own
    greedy replies to them."""
    asked: list[str] = []
    for line in read_text(questions).splitlines():
        try:
            asked += [str(text) for text in json.loads(line)["turns"]]
        except (ValueError, KeyError, TypeError):
            raise SettingsError(
                f"{questions} is no JSONL file of questions: each line needs a list 'turns'."
            ) from None
    if len(asked) < FILLER:
        raise SettingsError(f"{questions} has {len(asked)} questions; {FILLER} are needed.")
    codec = TextCodec(bundle)
    capacity = min(1024, bundle.manifest.max_capacity)
    engine = make_engine(bundle, capacity, allow_fallback=allow_fallback)
    cache = KVCache(engine, make_policy("window", 4))
    talk = Conversation(cache, codec)
    sampler = Sampler(SamplingSettings(temperature=0, repeat_penalty=1.15), codec.size)
    said = []
    for number, question in enumerate(asked[:FILLER]):
        progress(f"small talk: turn {number + 1} of {FILLER}")
        said.append((question, "".join(talk.stream(question, sampler, LONGEST_REPLY))))
    return said


def _fit(
    codec: TextCodec, before: Sequence[Turn], filler: Sequence[tuple[str, str]], tokens: int
) -> list[tuple[str, str]]:
    """``filler`` with replies cut so that the whole conversation is about ``tokens`` long."""
    frame = list(before)
    for question, _ in filler:
        frame += [Turn("user", question), Turn("assistant", ".")]
    left = tokens - len(codec.prompt(frame).ids)
    replies = [codec.encode(reply) for _, reply in filler]
    cap = max([1, *map(len, replies)])
    while cap > 1 and sum(min(cap, len(r)) for r in replies) > left:
        cap -= 1
    pairs = zip(filler, replies, strict=True)
    return [(question, codec.decode(reply[:cap])) for (question, _), reply in pairs]


def _log_likelihood(cache: KVCache, answer: list[int]) -> float:
    """log p of ``answer`` as what comes next; the cache stays as it is."""
    assert cache.logits is not None
    total = _log_p(cache.logits, answer[0])
    if len(answer) > 1:
        cache.make_room(len(answer))
        lengths = np.array([cache.slots.length], dtype=np.int32)
        logits = cache.engine.step(np.array([answer]), lengths, True)[0]
        total += sum(_log_p(logits[i], token) for i, token in enumerate(answer[1:]))
    return total


def _greedy(cache: KVCache, count: int) -> list[int]:
    """The likeliest next tokens, one after the other."""
    said: list[int] = []
    logits = cache.logits
    while logits is not None and len(said) < count:
        said.append(int(logits.argmax()))
        logits = cache.feed_one(said[-1])
    return said


def _log_p(logits: Logits, token: int) -> float:
    top = float(logits.max())
    return float(logits[token]) - top - float(np.log(np.exp(logits - top).sum()))


def as_rows(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    return [dataclasses.asdict(outcome) for outcome in outcomes]
