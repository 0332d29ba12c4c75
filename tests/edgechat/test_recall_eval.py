"""The memory test runs on any bundle and its figures mean what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgechat.bundle import load_bundle
from edgechat.errors import SettingsError
from edgechat.recall_eval import Subject, password_test, read_facts
from edgechat.settings import Settings


def test_every_answer_stands_in_its_statement_and_in_no_other() -> None:
    facts, passwords = read_facts()
    assert len(facts) >= 24 and len(passwords) == 8
    assert len({fact.answer for fact in facts}) == len(facts)
    for fact in facts:
        assert fact.answer in fact.statement
        others = " ".join(o.statement + o.same + o.other for o in facts if o is not fact)
        assert fact.answer not in others.split()


@pytest.mark.parametrize(("policy", "found"), [("window", 0.0), ("window+recall", 1.0)])
def test_password(tiny_bundle: Path, policy: str, found: float) -> None:
    settings = Settings(cache_window=200)
    subject = Subject(load_bundle(tiny_bundle), policy, settings, 600)
    (outcome,) = password_test(subject, "Once upon a time. " * 100, [400], lambda line: None)
    assert (outcome.tokens, outcome.questions) == (400, 8)
    if policy == "window":
        assert outcome.found == found
    else:
        assert outcome.found is not None and outcome.found > 0


def test_what_cannot_be_tested_is_refused(tiny_bundle: Path) -> None:
    bundle = load_bundle(tiny_bundle)
    with pytest.raises(SettingsError, match="choose from full"):
        Subject(bundle, "all", Settings(), 600)
    with pytest.raises(SettingsError, match="--capacity"):
        Subject(bundle, "full", Settings(), 600)
    subject = Subject(bundle, "window", Settings(cache_window=100), 600)
    with pytest.raises(SettingsError, match="give a longer one"):
        list(password_test(subject, "short", [400], lambda line: None))
