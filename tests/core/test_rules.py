"""One table of rules: every one of them is broken once, and refused alike wherever the choice is made."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from problems import WIDTH, local_models, problem
from tools import options
from torch import nn

from efvfl import QSGD, Agreement, CachedSteps, Protection, Quorum, SharedLabels, TopK, cvfl, efvfl
from efvfl.config.parsing import read
from efvfl.config.run_file import RunConfig
from efvfl.core.rules import RULES, Choices, check
from efvfl.errors import ConfigError

SHARED = Agreement(SharedLabels())
COMPRESS = Agreement(SharedLabels(fusion="compress"))
NARROW = Agreement(memory_dtype="bfloat16")
QUORUM = Agreement(asynchronous=Quorum(2))
MOMENTUM = {"name": "momentum"}
ADAM = {"name": "Adam"}
PLATEAU = {"name": "ReduceLROnPlateau"}
TWO = {"asynchronous": {"reports": 2}}  # the same in a file

# For every rule, in the order of the table: choices that break it and no other, and the same in a run file.
BROKEN: list[tuple[Choices, dict[str, Any] | None]] = [
    (Choices(SHARED, down=True), {"agreement": {"labels": "shared"}, "method": {"down": {"name": "sign"}}}),
    (Choices(SHARED, sent_only=True), {"agreement": {"labels": "shared"}, "method": {"cotangents": "sent"}}),
    (Choices(fusion=True), {"method": {"fusion": {"name": "sign"}}}),
    (Choices(COMPRESS), {"agreement": {"labels": "shared", "fusion": "compress"}}),
    (Choices(SHARED, protect=True), {"agreement": {"labels": "shared"}, "protect": {"clip": 1.0}}),
    (Choices(visits=True, clip=True), {"protect": {"clip": 1.0, "visits": {"noise": 1.0}}}),
    (Choices(visits=True, stratify=True), {"protect": {"visits": {"noise": 1.0}}, "data": {"stratify": True}}),
    (Choices(visits=True, balanced=True), {"protect": {"visits": {"noise": 1.0}}, "class_weights": "balanced"}),
    (Choices(releases=True, protect=True), {"protect": {"label_epsilon": 2.0, "clip": 1.0}}),
    (
        Choices(rows=True, exact=True),
        {"evaluation": "exact", "party": [{"name": "bank", "protect": {"clip": 1.0}}]},
    ),
    (
        Choices(Agreement(SharedLabels(downlink="aggregate")), combine="concat"),
        {"agreement": {"labels": "shared", "downlink": "aggregate"}, "fusion": {"combine": "concat"}},
    ),
    (Choices(widths=(3, 4)), None),
    (Choices(idle_memory=True), {"method": {"name": "cvfl", "memory": {"name": "ef14"}}}),
    (Choices(memory=False, start="exact"), {"method": {"name": "cvfl", "start": "exact"}}),
    (Choices(NARROW, start="exact"), {"agreement": {"memory_dtype": "bfloat16"}, "method": {"start": "exact"}}),
    (Choices(first=True, memory=False), {"method": {"name": "cvfl", "first": {"name": "sign"}}}),
    (Choices(first=True, start="exact"), {"method": {"start": "exact", "first": {"name": "sign"}}}),
    (Choices(NARROW, memory=False), {"agreement": {"memory_dtype": "bfloat16"}, "method": {"name": "cvfl"}}),
    (Choices(mapped=True, memory=False), {"memory": "mapped", "method": {"name": "cvfl"}}),
    (Choices(on_missing="stale", memory=False), {"network": {"on_missing": "stale"}, "method": {"name": "cvfl"}}),
    (Choices(on_missing="stale", own=True), {"network": {"on_missing": "stale"}, "method": {"memory": MOMENTUM}}),
    (Choices(on_missing="stale", start="mean"), {"network": {"on_missing": "stale"}, "method": {"start": "mean"}}),
    (
        Choices(on_missing="stale", first=True),
        {"network": {"on_missing": "stale"}, "method": {"first": {"name": "sign"}}},
    ),
    (Choices(Agreement(pipeline=True), away=True), None),
    (Choices(decides=True, on_missing="stale"), {"patience": 3, "network": {"on_missing": "stale"}}),
    (
        Choices(evaluation="compressed", on_missing="stale"),
        {"evaluation": "compressed", "network": {"on_missing": "stale"}},
    ),
    (
        Choices(decides=True, evaluation="exact"),
        {"evaluation": "exact", "optimizer": {"scheduler": {"name": "ReduceLROnPlateau"}}},
    ),
    (
        Choices(Agreement(SharedLabels(), cached=CachedSteps(2))),
        {"agreement": {"labels": "shared", "cached": {"steps": 2}}},
    ),
    (
        Choices(Agreement(cached=CachedSteps(2)), sampled=True),
        {"agreement": {"subsets": "sampled", "cached": {"steps": 2}}},
    ),
    (
        Choices(Agreement(SharedLabels(downlink="aggregate")), sampled=True),
        {"agreement": {"labels": "shared", "downlink": "aggregate", "subsets": "sampled"}},
    ),
    (Choices(sampled=True, protect=True), {"agreement": {"subsets": "sampled"}, "protect": {"clip": 1.0}}),
    (
        Choices(sampled=True, on_missing="stale"),
        {"agreement": {"subsets": "sampled"}, "network": {"on_missing": "stale"}},
    ),
    (Choices(QUORUM, memory=False), {"agreement": TWO, "method": {"name": "cvfl"}}),
    (Choices(Agreement(pipeline=True, asynchronous=Quorum(2))), {"agreement": {"pipeline": True} | TWO}),
    (
        Choices(Agreement(cached=CachedSteps(2), asynchronous=Quorum(2))),
        {"agreement": {"cached": {"steps": 2}} | TWO},
    ),
    (
        Choices(Agreement(SharedLabels(), asynchronous=Quorum(2))),
        {"agreement": {"labels": "shared"} | TWO},
    ),
    (Choices(QUORUM, sampled=True), {"agreement": {"subsets": "sampled"} | TWO}),
    (Choices(QUORUM, protect=True), {"agreement": TWO, "protect": {"clip": 1.0}}),
    (Choices(QUORUM, on_missing="stale"), {"agreement": TWO, "network": {"on_missing": "stale"}}),
    (Choices(Agreement(asynchronous=Quorum(4)), widths=(4, 4, 4)), None),
    (Choices(own_local_steps=True), {"party": [{"name": "bank", "training": {"local_steps": 2}}]}),
    (
        Choices(own_optimizer=True, plateau=True),
        {"optimizer": {"scheduler": PLATEAU}, "party": [{"name": "bank", "training": {"optimizer": ADAM}}]},
    ),
]


def test_every_rule_is_tried() -> None:
    assert len(BROKEN) == len(RULES)
    check(Choices())


@pytest.mark.parametrize(("number", "case"), list(enumerate(BROKEN)), ids=[f"{r.setting} / {r.clash}" for r in RULES])
def test_a_broken_rule_is_named_with_its_reason_and_remedy(
    number: int, case: tuple[Choices, dict[str, Any] | None]
) -> None:
    rule, (choices, table) = RULES[number], case
    assert [r for r in RULES if r.broken(choices)] == [rule]
    with pytest.raises(ConfigError) as found:
        check(choices)
    assert str(found.value) == rule.text
    assert rule.instead in rule.text
    if table is not None:
        with pytest.raises(ConfigError) as found:
            read(RunConfig, table, "run.toml")
        assert str(found.value) == rule.text


def test_python_is_refused_by_the_same_table(tmp_path: Path) -> None:
    models = [*local_models()[:2], nn.Linear(4, WIDTH + 1).double()]
    cases: list[dict[str, Any]] = [
        {"method": cvfl(TopK(0.1)), "agreement": NARROW},
        {"method": cvfl(TopK(0.1)), "mapped": tmp_path},
        {"method": efvfl(TopK(0.1), start="exact"), "agreement": NARROW},
        {"agreement": SHARED, "protect": Protection(1.0)},
        {"agreement": Agreement(SharedLabels(downlink="aggregate")), "combine": "concat"},
        {"models": models},
        {"patience": 2, "evaluation": "exact"},
    ]
    for case in cases:
        with pytest.raises(ConfigError, match="does not go with") as found:
            problem(**case)
        assert str(found.value) in {rule.text for rule in RULES}


def test_a_downlink_with_a_memory_may_be_narrow() -> None:
    method = replace(cvfl(TopK(0.1)), down=efvfl(QSGD(4)).up)
    check(Choices.of(method, NARROW))


def test_the_page_of_options_is_up_to_date() -> None:
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == options.page()


@pytest.mark.parametrize("wrong", ["secret", 3, None, SharedLabels])
def test_labels_of_no_known_mode_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"labels: expected PrivateLabels\(\), SharedLabels\(\.\.\.\), 'private' or"):
        Agreement(labels=wrong)
