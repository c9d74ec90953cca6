"""What a run begins with: the newest list and perhaps a trained run; it keeps both, and all must have the same."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.errors import CheckpointError, ConfigError, DataError, ProtocolError
from efvfl.network import handshake
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.alignments import BARE, Alignments
from efvfl.network.training import beginning, participant_data
from efvfl.network.training.autosave import CHECKPOINT, save_own
from efvfl.network.training.beginning import Beginning
from efvfl.network.training.participant_data import ENCODER, ParticipantData
from efvfl.network.training.trained_folder import open_trained
from efvfl.runs.trained import TrainedRun
from efvfl.util import checkpoint

MARCH = Aligned([f"p{i}" for i in range(8)], bytes([0] * 6 + [1, 2]))
APRIL = Aligned([f"p{i}" for i in range(2, 12)], bytes([0] * 8 + [1, 2]))

CONFIG: dict[str, Any] = {
    "label_holder": "bank",
    "party": [
        {"name": "bank", "data": {"path": "bank.csv", "id": "person", "label": "paid"}},
        {"name": "shop", "data": {"path": "shop.csv", "id": "person"}},
    ],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    pl.DataFrame({"person": [f"p{i}" for i in range(12)], "bought": range(12)}).write_csv(tmp_path / "shop.csv")
    return tmp_path


def load(place: Path, home: Path, start: TrainedRun | None = None) -> ParticipantData:
    return participant_data.load(configs.read(RunConfig, CONFIG, "test"), place, "shop", home, start)


def rows_of(data: ParticipantData) -> list[str]:
    return [name for names in data.ids.values() for name in names]


def test_a_run_takes_the_newest_list_and_keeps_it_once_it_has_begun(place: Path) -> None:
    home = place / "shop"
    Alignments(home).save(1, MARCH)
    assert rows_of(load(place, home)) == MARCH.ids
    Alignments(home).save(2, APRIL)
    began = load(place, home)  # nothing was saved, so it has not begun
    assert (began.began, rows_of(began)) == (Beginning(2), APRIL.ids)
    (home / CHECKPOINT).write_bytes(b"")
    Alignments(home).save(3, MARCH)
    later = load(place, home)
    assert (later.began, rows_of(later)) == (Beginning(2), APRIL.ids)
    assert later.about(configs.read(RunConfig, CONFIG, "test"), "shop")["alignment"] == 2


def test_a_run_of_an_older_release_keeps_its_only_list(place: Path) -> None:
    home = place / "shop"
    MARCH.save(home / BARE)
    (home / CHECKPOINT).write_bytes(b"")
    Alignments(home).save(2, APRIL)
    assert rows_of(load(place, home)) == MARCH.ids


def test_a_new_folder_takes_the_list_of_the_run_that_it_starts_from(place: Path) -> None:
    old, new = place / "march", place / "april"
    for number, aligned in ((1, MARCH), (2, APRIL)):
        Alignments(old).save(number, aligned)
    start = TrainedRun(old, {"shop": 4}, identities={"shop": "ab"})
    data = load(place, new, start)
    assert (data.began, rows_of(data), data.start) == (Beginning(2, {"shop": "ab"}), APRIL.ids, start)
    assert Alignments(new).numbers() == [2]
    (new / CHECKPOINT).write_bytes(b"")
    assert load(place, new).began == data.began  # it has started: the old folder may be gone
    (new / CHECKPOINT).unlink()
    assert load(place, new).began == Beginning(2)  # it has not, and now it starts from nothing


def test_a_table_that_has_lost_rows_says_how_to_go_on(place: Path) -> None:
    home = place / "shop"
    Alignments(home).save(1, MARCH)
    load(place, home)
    (home / CHECKPOINT).write_bytes(b"")
    pl.read_csv(place / "shop.csv")[3:].write_csv(place / "shop.csv")
    with pytest.raises(DataError, match=r"lacks 3 of the 6 aligned rows.* name today's as `new`"):
        load(place, home)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"alignment": "1", "start": {}}', '{"start": [1]}', '{"rows": 2}'])
def test_a_damaged_note_is_refused(place: Path, text: str) -> None:
    (place / CHECKPOINT).write_bytes(b"")
    (place / beginning.FILE).write_text(text)
    with pytest.raises(DataError, match=r"cannot go on with .*began\.json, which says what training began with"):
        beginning.load(place)


# The handshake.


def hello(alignment: int = 0, **start: str) -> dict[str, Any]:
    return handshake.about(RunConfig(), "shop", ["bank", "shop"], {}) | Beginning(alignment, start).identity()


@pytest.mark.parametrize(
    ("server", "party", "text"),
    [
        (hello(3), hello(2), "the server trains on alignment 3, shop on alignment 2"),
        (hello(3), hello(), "the server trains on alignment 3, shop on alignment 0"),
        (hello(), hello(shop="ab"), "shop starts from a trained run, but the server does not"),
        (hello(shop="ab"), hello(), "shop took part in the run that the server starts from, but starts fresh itself"),
        (hello(shop="ab"), hello(shop="cd"), "shop starts from another run than the server"),
        (hello(bank="ab"), hello(shop="cd"), "shop starts from another run than the server"),
        (hello(shop="ab"), hello() | {"start": "ab"}, "shop starts from another run than the server"),
    ],
)
def test_all_begin_alike(server: dict[str, Any], party: dict[str, Any], text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        handshake.compare(server, party)


def test_a_party_that_is_new_starts_fresh_beside_the_others() -> None:
    handshake.compare(hello(2, bank="ab"), hello(2))
    handshake.compare(hello(2, bank="ab", shop="cd"), hello(2, shop="cd"))


# A participant's folder as a start.


def leave(folder: Path, name: str, memory: str = "ab", rows: int = 8) -> Path:
    """Write what a finished run leaves of a party."""
    about = handshake.about(RunConfig(), name, ["bank", "shop"], {"train": ["p"] * rows})
    state = {"memory": memory, "party": {"block": {"module": {"weight": torch.ones(2)}}}}
    save_own(folder / CHECKPOINT, about, state)
    return folder


def test_a_folder_gives_its_own_parameters_and_an_identity_that_both_ends_know(tmp_path: Path) -> None:
    shop = open_trained(leave(tmp_path / "shop", "shop"), "shop")
    assert torch.equal(shop.models["shop"]["weight"], torch.ones(2))
    assert (shop.fusion, list(shop.widths)) == ({}, ["bank", "shop"])
    about = handshake.about(RunConfig(), "", ["bank", "shop"], {"train": ["p"] * 8})
    state = {
        "memory": {"shop": "ab", "bank": ""},
        "party": {},
        "server": {"block": {"module": {"head.1": torch.ones(3)}}},
    }
    save_own(tmp_path / "server" / CHECKPOINT, about, state)
    server = open_trained(tmp_path / "server", "")
    assert dict(server.identities) == dict(shop.identities)  # of a party that was away to the end there is none
    assert (list(server.models), list(server.fusion)) == ([], ["head.1"])
    others = [leave(tmp_path / "memory", "shop", "cd"), leave(tmp_path / "rows", "shop", rows=9)]
    assert all(open_trained(other, "shop").identities != shop.identities for other in others)


def test_a_folder_that_is_no_start_is_refused(tmp_path: Path) -> None:
    folder = leave(tmp_path, "shop", memory="")
    with pytest.raises(ConfigError, match="is not finished, or has not been told to be"):
        open_trained(folder, "shop")
    with pytest.raises(ConfigError, match=r"expected the folder of bank, got .* which is that of shop"):
        open_trained(folder, "bank")
    checkpoint.save(tmp_path / "one" / CHECKPOINT, {"config": {}, "federation": {}, "records": []})
    with pytest.raises(ConfigError, match=r"got .*one, which `efvfl run` left with the models of all"):
        open_trained(tmp_path / "one", "shop")
    (folder / ENCODER).write_text("{}")
    with pytest.raises(DataError, match="not an encoder of this version"):
        open_trained(leave(folder, "shop"), "shop")
    (folder / CHECKPOINT).unlink()
    (folder / "checkpoint.previous.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        open_trained(folder, "shop")
