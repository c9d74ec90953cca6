"""Rows that some parties lack, over wires: found by alignment, and trained on as in one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from missing_rows import align, settings, write
from networks import Fate, Network, assert_same, networked, reference, with_missing_rows
from recovery import disturbed

from efvfl.config.run_file import RunConfig
from efvfl.errors import DataError, RefusedError
from efvfl.network.align.alignments import Alignments
from efvfl.runs import run

SHARES = {"telco": 0.7, "shop": 0.4}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tables, in which relative paths start."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, SHARES)
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fusion": {"combine": "mean"}, "data": {"stratify": True, "min_parties": 2}},
        {"agreement": {"labels": "shared"}},
        {
            "agreement": {"labels": "shared", "fusion": "replicate"},
            "loss": "cross_entropy",
            "class_weights": "balanced",
        },
    ],
    ids=["private", "stratified", "shared", "replicated"],
)
def test_tables_over_wires_as_in_one_process(here: Path, changes: dict[str, Any]) -> None:
    config = settings(*SHARES, **changes)
    align(config, here / "net")
    assert_same(reference(config), networked(config, here / "net"))


def trained_alone(here: Path) -> tuple[RunConfig, Path]:
    """Lists of an alignment in everybody's folder."""
    config = settings(*SHARES)
    align(config, here / "net")
    return config, here / "net"


def test_a_table_that_lost_rows_since_the_alignment_is_refused(here: Path) -> None:
    config, folder = trained_alone(here)
    table = pl.read_csv(here / "telco.csv")
    table.filter(~pl.col("id").is_in(Alignments(folder / "telco").load(1).ids[:3])).write_csv(here / "telco.csv")
    with pytest.raises(DataError, match=r"telco\.csv.* 3 .*align"):
        Network(config, folder)


def test_presence_that_changed_since_the_alignment_is_refused(here: Path) -> None:
    """The list in one folder is of other rows than the label holder knows of."""
    config, folder = trained_alone(here)
    path = folder / "telco" / "alignments" / "1.parquet"
    rows = pl.read_parquet(path)
    dropped = rows.with_row_index().filter(pl.col("id").is_not_null())["index"][0]
    gone = pl.int_range(pl.len()) != dropped
    rows.with_columns(
        pl.when(gone).then(pl.col("id")).alias("id"), (pl.col("has telco") & gone).alias("has telco")
    ).write_parquet(path)
    with Network(config, folder) as network, pytest.raises(RefusedError, match="do not agree on which rows telco has"):
        network.run()


def test_a_list_of_another_kind_of_alignment_is_refused(here: Path) -> None:
    config, folder = trained_alone(here)
    with pytest.raises(DataError, match=r"alignment 1 in .* was made with another data\.align than 'psi'"):
        Network(replace(config, data=replace(config.data, align="psi")), folder)


@pytest.mark.parametrize("party", ["bank", "telco"])
def test_an_id_that_occurs_twice_is_refused_or_counts_once(here: Path, party: str) -> None:
    table = pl.read_csv(here / f"{party}.csv")
    pl.concat([table, table.head(1)]).write_csv(here / f"{party}.csv")
    config = settings(*SHARES)
    for attempt in (lambda: align(config, here / "net"), lambda: run.train(config, here / "one")):
        with pytest.raises(DataError, match=r"expected a unique id for every row, but 2 rows share 1 ids"):
            attempt()
    align(settings(*SHARES, data={"duplicates": "first"}), here / "first")
    ids = Alignments(here / "first" / ("server" if party == "bank" else party)).load(1).ids
    assert len(ids) == len(set(ids))


def test_a_party_without_a_row_in_common_is_refused_in_one_process_too(here: Path) -> None:
    pl.read_csv(here / "shop.csv").with_columns(who=pl.format("other-{}", "who")).write_csv(here / "shop.csv")
    with pytest.raises(DataError, match="expected 'shop' to have some of the label holder's 60 ids, got none"):
        run.train(settings(*SHARES), here / "one")


@pytest.mark.parametrize("who", ["", "top-right"])
@pytest.mark.parametrize(
    "changes",
    [
        {"agreement": {"pipeline": 3}, "method": {"compressor": {"name": "topk", "ratio": 0.3}}},
        {"agreement": {"labels": "shared", "fusion": "replicate", "digest_every": 2}, "network": {"save_steps": 2}},
    ],
    ids=["private", "shared"],
)
def test_who_is_killed_goes_on_as_if_nothing_had_happened(tmp_path: Path, who: str, changes: dict[str, Any]) -> None:
    """The label holder, or a party that has a tenth of the rows."""
    config = with_missing_rows(tmp_path, **changes)
    assert_same(reference(config), disturbed(config, tmp_path / "net", who, Fate(17, kill=True)))
