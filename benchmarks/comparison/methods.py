"""The methods, as changes of a run file. Every one that compresses has the same compressor on its way down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.comparison.problems import Contest

Family = Literal["exact", "C-VFL", "EF-VFL"]

DOWN = {"name": "uniform", "levels": 31, "scale": "row"}  # of cotangents, wherever representations are compressed
TOP_K = {"name": "topk", "ratio": 0.1}
RANDOM = {"name": "random_topk", "ratio": 0.1, "others": 0.1}
QSGD = {"name": "qsgd", "bits": 4}
TERNARY = {"name": "uniform", "levels": 1, "scale": "row"}
UPDATES = 5  # of every block in a round, where there is more than one
REMEMBERED = 5  # batches
LATE = 4.0  # times as long as the others, takes the last party for a report
NARROW = 4  # times


@dataclass(frozen=True)
class Entrant:
    """A method of the comparison."""

    name: str
    family: Family
    method: Mapping[str, Any]
    agreement: Mapping[str, Any] = field(default_factory=dict)
    narrower: int = 1  # times: the representation
    predicts: Mapping[str, Any] | None = None  # compressor of held-out rows, beside predicting from exact ones
    late: bool = False  # one party is, and a step is taken without it

    def change(self, contest: Contest, parties: list[str]) -> dict[str, Any]:
        """Return what it changes of a problem's run file."""
        agreement = {"labels": "private", **self.agreement}
        out: dict[str, Any] = {"method": dict(self.method), "agreement": agreement}
        if self.narrower > 1:
            out["model"] = {"width": contest.width // self.narrower}
        if self.late:
            agreement["asynchronous"] = {"reports": len(parties) - 1}
            out["party"] = [{"name": parties[-1], "report_seconds": LATE}]
        return out


def _compressed(family: Family, what: str, compressor: Mapping[str, Any], **others: Any) -> Entrant:
    name = {"C-VFL": "cvfl", "EF-VFL": "efvfl"}[family]
    title = what if what.startswith("randomised") else f"{family}, {what}"
    method = {"name": name, "compressor": dict(compressor), "down": DOWN}
    # Without memory the fusion model learns from compressed rows alone; what is drawn at random is for training.
    predicts = (TOP_K if compressor is RANDOM else compressor) if family == "C-VFL" else None
    return Entrant(title, family, method, predicts=predicts, **others)


# What both ends remember of the last batches, for updates between two rounds.
_CACHED = {"cached": {"steps": UPDATES - 1, "batches": REMEMBERED, "angle": 60.0}}

ENTRANTS = {
    one.name: one
    for one in (
        Entrant("SVFL", "exact", {"name": "svfl"}),
        Entrant("SVFL, narrower", "exact", {"name": "svfl"}, narrower=NARROW),
        Entrant("FedBCD", "exact", {"name": "fedbcd", "options": {"updates": UPDATES}}),
        Entrant("CELU", "exact", {"name": "celu", "options": {"updates": UPDATES, "batches": REMEMBERED}}),
        _compressed("C-VFL", "top-k 10 %", TOP_K),
        _compressed("C-VFL", "randomised top-k 10 %", RANDOM),
        _compressed("C-VFL", "qsgd 4 bit", QSGD),
        _compressed("C-VFL", "ternary", TERNARY),
        _compressed("EF-VFL", "top-k 10 %", TOP_K),
        _compressed("EF-VFL", "qsgd 4 bit", QSGD),
        _compressed("EF-VFL", "ternary", TERNARY),
        _compressed("EF-VFL", "ternary, cached steps", TERNARY, agreement=_CACHED),
        _compressed("EF-VFL", "ternary, asynchronous", TERNARY, late=True),
    )
}
