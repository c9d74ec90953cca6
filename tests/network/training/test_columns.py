"""Which columns matter: a party that agreed puts a column's values in another order, and the label holder scores it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from malicious import MaliciousServer
from meetings import holding, make_member, settings
from missing_rows import align, write
from missing_rows import settings as outer_settings
from networks import Network, process_of

from efvfl.config.run_file import ColumnConsent, LimitConfig, RunConfig
from efvfl.errors import ConfigError, DataError, LimitError, ProtocolError
from efvfl.network.align.alignments import Alignments
from efvfl.network.training.column_inquiry import ColumnFindings, ColumnList, inquire
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.questions import QuestionHandler
from efvfl.runs import run
from efvfl.runs.column_worth import FILE, load_column_values, numbers_of
from efvfl.training.values import ValueEstimate

VICTIM = "top-left"


def agreeing(config: RunConfig, **consents: ColumnConsent) -> RunConfig:
    """The same run, in which parties agree to this."""
    limits = {name: LimitConfig(columns=consent) for name, consent in consents.items()}
    return replace(config, party=tuple(replace(p, limits=limits.get(p.name, p.limits)) for p in config.party))


@pytest.fixture(scope="module")
def once_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a training in which rows were missing, over wires and in one process."""
    folder = tmp_path_factory.mktemp("columns")
    config = outer_settings("telco", "shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write(folder, {"telco": 0.7, "shop": 0.4}, rows=120)
        align(config, folder / "net")
        with Network(config, folder / "net") as network:
            network.run()
        run.train(config, folder / "whole")
    return folder


@pytest.fixture
def trained(once_trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to work in: what a party gives, and each refusal, is counted in its folder for good."""
    folder = shutil.copytree(once_trained, tmp_path / "trained")
    monkeypatch.chdir(folder)
    return folder


def asked(folder: Path, **consents: Any) -> tuple[ColumnFindings, dict[str, int]]:
    """Ask about columns after training, with all parties here; return what was found, and the rows that were given."""
    with Network(agreeing(outer_settings("telco", "shop"), **consents), folder / "net") as network:
        serving = network.serve()
        serving.requests.told.clear()
        network.join_all()
        found = inquire(serving)
        given = {name: process_of(network.joinings[name]).rows_given.value for name in network.names}
        network.finish()
    return found, given


def rounded(columns: dict[str, ValueEstimate]) -> dict[str, list[float]]:
    return {name: numbers_of(estimate) for name, estimate in columns.items()}


def test_who_agreed_is_told_and_the_label_holder_as_far_as_it_may_know(trained: Path) -> None:
    found, given = asked(trained, telco="shared", shop="own")
    whole = load_column_values(trained / "whole")
    assert whole
    assert list(whole.parties) == ["bank", "telco", "shop"]
    assert list(whole.parties["shop"]) == ["spent", "kind"]
    held = load_column_values(trained / "net" / "server")
    assert held == found.worth
    assert (held.split, held.metric, held.rows) == (whole.split, whole.metric, whole.rows)
    # The same as in one process: of its own columns, and of those that it was told the names of.
    assert {n: rounded(c) for n, c in held.parties.items()} == {n: rounded(whole.parties[n]) for n in ("bank", "telco")}
    assert (found.unnamed, found.refused) == ({"shop": 2}, {})
    for name in ("telco", "shop"):
        own = load_column_values(trained / "net" / name)
        assert own
        assert {n: rounded(c) for n, c in own.parties.items()} == {name: rounded(whole.parties[name])}
    rows = {name: len(held_rows(trained, name)) for name in ("telco", "shop")}
    assert given == {"telco": rows["telco"], "shop": 2 * rows["shop"]}  # one column, and two


def held_rows(folder: Path, name: str) -> list[str]:
    """The ids of the validation rows that a party has."""
    return Alignments(folder / "net" / name).load(1).by_split()["validation"]


def test_nobody_is_asked_who_has_not_agreed(trained: Path) -> None:
    found, given = asked(trained, telco="no")
    assert given == {"telco": 1, "shop": 1}  # a refusal counts, too
    assert list(found.worth.parties) == ["bank"]
    assert {
        name: "limits.columns = 'own' or 'shared' in its own file" in text for name, text in found.refused.items()
    } == {
        "telco": True,
        "shop": True,
    }
    assert not any((trained / "net" / name / FILE).exists() for name in ("telco", "shop"))


def test_where_labels_are_protected_nothing_is_told(trained: Path) -> None:
    with Network(outer_settings("telco", "shop"), trained / "net") as network:
        serving = network.serve()
        serving.config = replace(serving.config, protect=replace(serving.config.protect, clip=0.1))
        with pytest.raises(ConfigError, match=r"labels are protected \(\[protect\]\)"):
            inquire(serving)


def test_a_secret_order_needs_a_seed_of_ones_own(tmp_path: Path) -> None:
    consent: dict[str, ColumnConsent] = {VICTIM: "own"}
    member, config = make_member(settings(), VICTIM, tmp_path), agreeing(settings(party=[{"name": VICTIM}]), **consent)
    held = holding(settings(), VICTIM, Path())
    with pytest.raises(
        ConfigError, match=r"limits\.columns = 'own' .* would follow from the shared seed: set private_s"
    ):
        QuestionHandler.allowed(member.party, held, config, tmp_path)


# A label holder and parties that do not follow the protocol.


def victim(folder: Path, limits: LimitConfig) -> PartyProcess:
    """A party that has agreed, and holds arrays."""
    member = make_member(settings(), VICTIM, folder, limits)
    chosen = agreeing(settings(party=[{"name": VICTIM, "private_seed": 5}]), **{VICTIM: limits.columns})
    member.represent = QuestionHandler.allowed(member.party, holding(settings(), VICTIM, Path()), chosen, folder)
    return member


@pytest.mark.attack(
    by="the label holder",
    tries="asks for rows with a column permuted, again and again, or without the party's consent",
    outcome="refused without consent; every row counts towards limits.rows",
)
def test_permuted_rows_count(tmp_path: Path) -> None:
    server = MaliciousServer(make_member(settings(), VICTIM, tmp_path / "no"))
    answer = server.ask({"columns": 0, "split": "test", "rows": [0]})
    assert answer[:1] == b"\x01"
    assert b"limits.columns" in answer
    member = victim(tmp_path / "own", LimitConfig(rows=25, columns="own"))
    server = MaliciousServer(member)
    table = {"columns": 0, "split": "test", "rows": list(range(10))}
    assert server.ask(table)[:1] == b"\x00"
    assert member.rows_given.value == 10
    server.ask(table | {"columns": 1})
    with pytest.raises(LimitError, match="30 rows are asked for in all"):
        server.ask(table)
    for wrong in ({"columns": 10**6}, {"columns": -1}, {"split": "train"}, {"rows": [10**9]}):
        answer = MaliciousServer(victim(tmp_path / str(wrong), LimitConfig(columns="own"))).ask(table | wrong)
        assert answer[:1] == b"\x01"


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": "all"},
        {"columns": 0, "split": "test", "rows": []},
        {"columns": 0, "split": "test", "rows": [3, 2]},
        {"columns": 0, "split": "test", "rows": [-1, 2]},
        {"columns": 0, "split": "test", "rows": [0.5]},
        {"columns": {"values": [[0, 0, 0]], "split": "test", "rows": 5, "metric": "auc"}},
        {"columns": {"values": [[0, 0]] * 16, "split": "test", "rows": 5, "metric": "auc"}},
        {"columns": {"values": [[0, 0, "x"]] * 16, "split": "test", "rows": 5, "metric": "auc"}},
        {"columns": {"values": [[0, 0, float("inf")]] * 16, "split": "test", "rows": 5, "metric": "auc"}},
        {"columns": {"values": [[0, 0, 0]] * 16, "split": "train", "rows": 5, "metric": "auc"}},
        {"columns": {"values": [[0, 0, 0]] * 16, "split": "test", "rows": "5", "metric": "auc"}},
        {"columns": {"values": [[0, 0, 0]] * 16, "split": "test", "rows": 5, "metric": None}},
    ],
)
def test_nonsense_about_columns_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="expected"):
        MaliciousServer(victim(tmp_path, LimitConfig(columns="own"))).ask(wrong)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00",
        b"\x00[]",
        b'\x00{"count": 0, "names": null}',
        b'\x00{"count": 2, "names": ["a"]}',
        b'\x00{"count": 2, "names": ["a", "a"]}',
        b'\x00{"count": 1, "names": [7]}',
        b'\x00{"count": 1e9, "names": null}',
        b'\x02{"count": 1, "names": null}',
    ],
)
def test_a_party_that_says_nonsense_of_its_columns_is_refused(answer: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected bank to say how many columns it has"):
        ColumnList.read("bank", answer)
    with pytest.raises(DataError, match="no"):
        ColumnList.read("bank", b"\x01no")
    shown = ColumnList.read("bank", b"\x00" + json.dumps({"count": 1, "names": ["a\x1b[2J"]}).encode())
    assert "\x1b" not in shown.names[0]
