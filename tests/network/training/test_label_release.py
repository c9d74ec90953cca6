"""Labels that are randomised once, over wires: the draw is kept, and nobody is sent another label."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from leaks import find_leaks
from missing_rows import align, settings, write
from networks import Network, assert_same, config, networked, reference
from torch import Tensor

from efvfl.cli.main import main
from efvfl.config.run_file import RunConfig
from efvfl.core.label_release import LabelRelease, from_seed
from efvfl.data import label_draws
from efvfl.errors import CheckpointError, ConfigError, DataError, WireError
from efvfl.network.align.alignments import Alignments
from efvfl.network.align.list_targets import ListTargets, read_drawn
from efvfl.network.doctor.tables import look
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.wire import MemoryWire
from efvfl.network.ops import audit_log
from efvfl.network.training import participant_data
from efvfl.network.training.server_process import ServerProcess
from efvfl.runs import spent_file
from efvfl.runs.build import load_data
from efvfl.util.rng import derive

DIGITS = config(protect={"label_epsilon": 2.0}, private_seed=7)
SHARES = {"telco": 1.0, "shop": 0.6}


def simulate(chosen: RunConfig, folder: Path, truth: dict[str, Tensor], ids: dict[str, list[str]], loss: str) -> None:
    """Leave the draw in a folder that one process would have."""
    seed = from_seed(derive(chosen.private_seed or 0, "server", "labels"))
    label_draws.of_folder(chosen, loss, truth, ids, folder, source=seed)


def draw_of(chosen: RunConfig, folder: Path) -> LabelRelease:
    found = participant_data.load(chosen, Path(), "", folder).release
    assert found
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "patience": 2,
            "class_weights": "balanced",
            "optimizer": {"name": "SGD", "lr": 0.5, "scheduler": {"name": "ReduceLROnPlateau", "patience": 0}},
        },
    ],
    ids=["plain", "decisions and weights"],
)
def test_the_same_draw_gives_the_same_bits_as_in_one_process(tmp_path: Path, changes: dict[str, Any]) -> None:
    chosen = config(protect={"label_epsilon": 2.0}, private_seed=7, **changes)
    data = load_data(chosen, Path())
    truth = {split: part.labels for split, part in data.splits.items()}
    ids = {split: [f"{split}:{i}" for i in range(len(labels))] for split, labels in truth.items()}
    simulate(chosen, tmp_path / "net" / "server", truth, ids, "cross_entropy")
    assert_same(reference(chosen), networked(chosen, tmp_path / "net"))


def test_a_restart_does_not_draw_again_and_nobody_else_can_read_the_draw(tmp_path: Path) -> None:
    first, again = draw_of(DIGITS, tmp_path), draw_of(DIGITS, tmp_path)
    assert all(torch.equal(first.labels[s], again.labels[s]) for s in first.labels)
    assert not torch.equal(first.labels["train"], first.truth["train"])
    assert not first.simulated
    other = draw_of(DIGITS, tmp_path / "other")
    assert not torch.equal(first.labels["train"], other.labels["train"])
    path = tmp_path / label_draws.FILE
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CheckpointError, match=r"restore protect\.label_epsilon"):
        draw_of(replace(DIGITS, protect=replace(DIGITS.protect, label_epsilon=4.0)), tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged|changed"):
        draw_of(DIGITS, tmp_path)


def test_rows_that_come_later_are_added_and_changed_labels_are_refused(tmp_path: Path) -> None:
    labels = torch.tensor([0, 1, 2, 1, 0, 2] * 20)
    ids = [str(i) for i in range(120)]

    def told(rows: int, home: Path = tmp_path, truth: Tensor = labels, earlier: Path | None = None) -> Tensor:
        found = label_draws.of_folder(
            DIGITS, "cross_entropy", {"train": truth[:rows]}, {"train": ids[:rows]}, home, earlier
        )
        assert found
        return found.labels["train"]

    before = told(100)
    assert torch.equal(told(120)[:100], before)
    assert torch.equal(told(120, tmp_path / "warm", earlier=tmp_path), told(120))  # which starts from the other
    with pytest.raises(DataError, match="3 of 100 labels are not those that were randomised"):
        told(100, truth=torch.cat([(labels[:3] + 1) % 3, labels[3:]]))
    with pytest.raises(ConfigError, match="needs the label holder's folder"):
        label_draws.of_folder(DIGITS, "cross_entropy", {}, {}, None)


def test_a_run_whose_draw_was_lost_does_not_go_on(tmp_path: Path) -> None:
    with Network(DIGITS, tmp_path) as network:
        network.run()
    home = tmp_path / "server"
    (home / label_draws.FILE).unlink()
    holding = participant_data.load(DIGITS, Path(), "", home)
    with pytest.raises((CheckpointError, ConfigError), match="randomised labels"):
        ServerProcess(DIGITS, holding, home)


def test_it_is_stated_kept_and_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Network(DIGITS, tmp_path) as network:
        server = network._served()
        assert server.promise.startswith("This run will spend epsilon = 2: the label of each row, towards all other")
        assert "simulation" not in server.promise
        network.run()
    assert float(server.records[-1].spent["labels"]["epsilon"]) <= 2
    assert spent_file.load(tmp_path / "server") == server.driver.spent()
    (tmp_path / "server" / audit_log.FILE).touch()
    assert main(["audit", str(tmp_path / "server")]) == 0
    assert "spent on labels: epsilon = 2 (each drawn once among 10 classes" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("extra", [{}, {"patience": 1, "class_weights": "balanced"}], ids=["plain", "decisions"])
def test_every_frame_of_the_server_follows_from_the_randomised_labels(
    tmp_path: Path, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs with other true labels and one draw: whatever the server sends, settings and texts too, is the same."""
    chosen = config(protect={"label_epsilon": 2.0}, private_seed=7, **extra)
    release, frames = draw_of(chosen, tmp_path / "draw"), list[set[bytes]]()
    send = MemoryWire.send

    def heard(wire: MemoryWire, data: bytes) -> None:
        if Frame.from_bytes(data).kind in (FrameKind.WELCOME, FrameKind.REQUEST, FrameKind.REFUSE, FrameKind.STOP):
            frames[-1].add(data)
        send(wire, data)

    monkeypatch.setattr(MemoryWire, "send", heard)
    scores = []
    for shift in (0, 1):
        truth = {split: (labels + shift) % 10 for split, labels in release.truth.items()}
        other = replace(release, truth=truth)
        monkeypatch.setattr(label_draws, "of_folder", lambda *_, found=other: found)
        load = participant_data._load

        def loaded(*given: Any, load: Any = load, truth: Any = truth) -> Any:
            data = load(*given)
            return replace(data, labels=truth) if data.labels else data

        monkeypatch.setattr(participant_data, "_load", loaded)
        frames.append(set())
        with Network(chosen, tmp_path / str(shift)) as network:
            network.run()
            scores.append(network._served().records[-1].validation)
        monkeypatch.setattr(participant_data, "_load", load)
    assert len(frames[0]) > 20
    assert frames[0] == frames[1]
    assert scores[0] != scores[1]  # the label holder's own


# Shared labels: parties are told the randomised ones by the list of rows.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, SHARES)
    return tmp_path


def of_tables(**changes: Any) -> RunConfig:
    return settings(*SHARES, protect={"label_epsilon": 1.0}, **changes)


def simulate_tables(chosen: RunConfig, folder: Path) -> None:
    table = pl.read_csv("bank.csv")
    labels = torch.tensor([int(value == "yes") for value in table["paid"]])
    simulate(chosen, folder, {"": labels}, {"": table["person"].to_list()}, "binary_cross_entropy")


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"stratify": True}},
        {"agreement": {"labels": "shared", "local_steps": 2}, "class_weights": "balanced"},
        {"agreement": {"labels": "shared", "downlink": "aggregate", "subsets": "off"}, "fusion": {"combine": "mean"}},
    ],
    ids=["stratified", "shared, local updates", "aggregate"],
)
def test_tables_over_wires_as_in_one_process(here: Path, changes: dict[str, Any]) -> None:
    chosen = of_tables(**changes)
    simulate_tables(chosen, here / "net" / "server")
    align(chosen, here / "net")
    assert_same(reference(chosen), networked(chosen, here / "net"))


def test_parties_are_told_the_randomised_labels_and_no_others(here: Path) -> None:
    chosen = of_tables(agreement={"labels": "shared"})
    meeting = align(chosen, here / "net")
    aligned = Alignments(here / "net" / "server").load(1)
    release = draw_of(chosen, here / "net" / "server")
    assert aligned.outer
    assert aligned.outer.targets
    told = torch.cat([release.labels[split] for split in aligned.outer.spans()])
    truth = torch.cat([release.truth[split] for split in aligned.outer.spans()])
    assert not torch.equal(told, truth)
    for name in SHARES:
        held = participant_data.load(chosen, Path(), name, here / "net" / name)
        assert torch.equal(torch.cat([held.labels[split] for split in aligned.outer.spans()]), told)
        assert held.release
        assert (held.release.mechanism, held.release.truth) == (release.mechanism, {})

    def searched(sent: list[bytes]) -> list[str]:
        seen = SimpleNamespace(payloads=[("down", "", data) for data in sent], label_batches=[truth], fusion=[])
        text = json.dumps(truth.tolist())[1:-1]
        texts = [s for s in (text, text.replace(" ", "")) if any(s.encode() in data for data in sent)]
        return find_leaks(seen) + texts  # type: ignore[arg-type]

    heard = [data for name in SHARES for data in meeting.heard[name]]
    assert any(json.dumps(told.tolist())[1:-1].replace(" ", "").encode() in data.replace(b" ", b"") for data in heard)
    assert searched(heard) == []
    assert searched([*heard, json.dumps({"labels": truth.tolist()}).encode()])  # a planted one


def test_shared_labels_need_a_list_that_tells_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs tables and data\.align = 'outer'"):
        participant_data.load(
            replace(DIGITS, agreement=replace(DIGITS.agreement, labels="shared")), Path(), "", tmp_path
        )


def test_the_doctor_says_whether_labels_are_drawn_and_draws_none(tmp_path: Path) -> None:
    findings = {f.what: f for f in look(DIGITS, Path(), "", tmp_path).findings}
    assert findings["labels"].text == "randomised once, with epsilon = 2: they are not drawn yet"
    assert not list(tmp_path.iterdir())
    draw_of(DIGITS, tmp_path)
    assert look(DIGITS, Path(), "", tmp_path).findings[-1].text.endswith("they are drawn")
    shared = replace(DIGITS, agreement=replace(DIGITS.agreement, labels="shared"))
    assert look(shared, Path(), "", tmp_path).findings[-1].grade == "problem"


@pytest.mark.parametrize(
    "wrong",
    [[], {"corrects": 1}, {"corrects": True}, {"corrects": True, "kind": "response", "classes": 2, "other": 1 << 64}],
)
def test_odd_mechanisms_of_others_are_refused(wrong: object) -> None:
    assert read_drawn(None) is None
    with pytest.raises(WireError):
        read_drawn(wrong)
    table = ListTargets([0, 1], [None, None], ("no", "yes"), "binary_cross_entropy").table() | {"drawn": wrong}
    with pytest.raises(WireError):
        ListTargets.read(table, 2)
