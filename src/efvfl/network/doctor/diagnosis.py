"""One line of what `efvfl doctor` has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Diagnosis:
    """What was looked at, how it is, and what to do about it."""

    what: str
    grade: Grade
    text: str
    advice: str = ""


def problem_of(what: str, error: Exception) -> Diagnosis:
    """Return an error of ours as a finding: it says what to do itself."""
    return Diagnosis(what, "problem", str(error))
