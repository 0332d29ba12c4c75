"""Something that is missing, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gap:
    """``problem`` and ``remedy`` are parts of one sentence, without its full stop."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}." if self.remedy else f"{self.problem}."


def gap_of(sentence: str) -> Gap:
    """An error of edgechat's: cause; remedy."""
    problem, _, remedy = sentence.removesuffix(".").partition("; ")
    return Gap(problem, remedy)
