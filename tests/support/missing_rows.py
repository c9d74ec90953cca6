"""A label holder and two parties that lack some of its rows, as tables: aligned, and ready to train over wires."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from alignments import Meeting
from networks import own_copy

from efvfl.cli.sessions.align import read_tables, told_labels
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.data import label_draws
from efvfl.network.align.list_targets import ListTargets

ROWS = 60
ID = {"bank": "person", "telco": "id", "shop": "who"}


def people(rows: int = ROWS) -> list[str]:
    return [f"p{i:03d}" for i in range(rows)]


def write(folder: Path, has: Mapping[str, float], rows: int = ROWS) -> dict[str, pl.DataFrame]:
    """Write the tables of a bank, which has all rows and the labels, and of others with such shares of them."""
    rng = np.random.default_rng(1)
    ids, x = people(rows), rng.normal(size=(rows, 3)).round(3)
    made = {"bank": pl.DataFrame({"person": ids, "debt": x[:, 0], "paid": np.where(x.sum(1) > 0, "yes", "no")})}
    columns = {"telco": {"calls": x[:, 1]}, "shop": {"spent": x[:, 2], "kind": rng.choice(["a", "b", "c"], rows)}}
    for name, share in has.items():
        table = pl.DataFrame({ID[name]: ids, **columns[name]}).filter(pl.Series(rng.random(rows) < share))
        strangers = table.head(4).with_columns(pl.Series(ID[name], [f"{name}-{i}" for i in range(4)]))
        made[name] = pl.concat([table, strangers]).sample(fraction=1, shuffle=True, seed=3)
    for name, table in made.items():
        table.write_csv(folder / f"{name}.csv")
    return made


def settings(*others: str, **changes: Any) -> RunConfig:
    """The run of a bank and these others."""
    bank = {"name": "bank", "data": {"path": "bank.csv", "id": "person", "label": "paid"}}
    table: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 16,
        "label_holder": "bank",
        "private_seed": 7,
        "observe_gradient": False,
        "data": {"align": "outer", "validation": 0.15, "test": 0.15},
        "model": {"width": 4, "hidden": [4]},
        "fusion": {"hidden": [4]},
        "party": [bank, *({"name": n, "data": {"path": f"{n}.csv", "id": ID[n]}, "private_seed": 9} for n in others)],
    }
    for key, value in changes.items():
        table[key] = table[key] | value if key in ("data", "model", "fusion") else value
    return configs.read(RunConfig, table, "missing rows")


def align(config: RunConfig, folder: Path, tables: Path = Path()) -> Meeting:
    """Leave the lists of an alignment in everybody's folder; the alignment is over when it is returned."""
    names = [party.name for party in config.party if party.name != config.label_holder]
    found = {name: read_tables(config, tables, name) for name in ("", *names)}
    ids = {name: local.ids for name, local in found.items()}
    draw = partial(label_draws.of_folder, config, home=folder / "server")
    with Meeting(folder, own_copy(config, ""), ids, told_labels(found[""], config, draw)) as meeting:
        meeting.targets_of = partial(ListTargets.of, found[""].tables[-1], loss=config.loss, draw=draw)
        meeting.configs = {name: own_copy(config, name) for name in ids if name}
        meeting.run()
        for name in ids:
            if name and (error := meeting.wait(name)) is not None:
                raise error
    return meeting
