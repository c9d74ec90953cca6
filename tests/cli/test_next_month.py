"""A month later, as people live it: more rows, another column, one more party, and a model that goes on being used.

One story in real processes over mutual TLS. In March a bank and a telephone company train; in April their tables have
grown and changed, and a shop joins them.
"""

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from warm_processes import Process, Stage

from efvfl.cli.main import main
from efvfl.network.identity import authority, certificates

FILE = """
seed = 4
epochs = 3
batch_size = 16
private_seed = 70
loss = "binary_cross_entropy"
label_holder = "bank"
model = {{ width = 4 }}
method = {{ name = "efvfl", compressor = {{ name = "topk", ratio = 0.5 }} }}
agreement = {{ labels = "private" }}
data = {{ validation = 0.15, test = 0.2, id_format = ["strip", "case"] }}
network = {{ address = "127.0.0.1:0" }}
[[party]]
name = "bank"
private_seed = 71
data = {{ path = "bank-{month}.csv", id = "person", label = "paid"{bank} }}
[[party]]
name = "telco"
private_seed = 72
data = {{ path = "telco-{month}.csv", id = "person"{telco} }}
"""
SHOP = """
[[party]]
name = "shop"
private_seed = 73
data = { path = "shop-april.csv", id = "person" }
"""
MARCH, APRIL = 60, 90  # persons
NEW = ["p070", "P071", "p089"]  # some that were not there in March; one is not written as in the tables


def write_tables(folder: Path) -> None:
    """In April there are 30 persons more; the telephone company has lost one, counts seconds, and has a new tariff."""
    chance = np.random.default_rng(2)
    person = [f"p{i:03}" for i in range(APRIL)]
    age, calls = chance.normal(40, 9, APRIL).round(1), chance.normal(20, 5, APRIL).round(1)
    tariff = np.array(["flat", "daily"])[chance.integers(0, 2, APRIL)]
    paid = np.where(age / 9 + calls / 5 + chance.normal(0, 0.3, APRIL) > 8.4, "yes", "no")
    bank = pl.DataFrame({"person": person, "age": age, "paid": paid})
    telco = pl.DataFrame({"person": person, "calls": calls, "tariff": tariff})
    bank.head(MARCH).write_csv(folder / "bank-march.csv")
    telco.head(MARCH).write_csv(folder / "telco-march.csv")
    bank.write_csv(folder / "bank-april.csv")
    later = pl.Series(person).is_in(person[MARCH:])
    telco = telco.with_columns(
        pl.col("calls") * 60,
        tariff=pl.when(later & (pl.col("tariff") == "flat")).then(pl.lit("roaming")).otherwise("tariff"),
        abroad=pl.Series(chance.normal(2, 1, APRIL).round(1)),
    )
    telco.filter(pl.col("person") != person[3]).write_csv(folder / "telco-april.csv")
    for name, table in (("bank", bank), ("telco", telco)):
        table[MARCH:].write_csv(folder / f"{name}-new.csv")
    pl.DataFrame({"person": person, "bought": chance.integers(0, 9, APRIL)}).write_csv(folder / "shop-april.csv")


@dataclass
class Month:
    """What is left of the story: processes by the name of their participant."""

    folder: Path
    aligned: list[dict[str, Process]]  # in March, and again in April
    lists: str  # what `efvfl align --list` said at the bank
    trained: list[dict[str, Process]]  # in March, and in April from March's model
    predicted: list[dict[str, Process]]  # with March's model: before and after April's alignment
    one_process: list[str]  # what `efvfl run` said in both months

    @property
    def everyone(self) -> list[Process]:
        groups = [*self.aligned, *self.trained, *self.predicted]
        return [process for group in groups for process in group.values()]

    def predictions(self, name: str) -> pl.DataFrame:
        return pl.read_csv(self.folder / name)


def run(*arguments: str | Path) -> str:
    """Run a command in this process; return what it said."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([str(argument) for argument in arguments]) == 0
    return said.getvalue()


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Month]:
    folder = tmp_path_factory.mktemp("month")
    write_tables(folder)
    later = {name: f', new = "{name}-new.csv"' for name in ("bank", "telco")}
    (folder / "march.toml").write_text(FILE.format(month="march", bank="", telco=""))
    (folder / "later.toml").write_text(FILE.format(month="march", **later))
    (folder / "april.toml").write_text(FILE.format(month="april", bank="", telco="") + SHOP)
    authority.make(folder / "certs", [certificates.SERVER, "telco", "shop"])
    stage = Stage(folder)
    try:
        march = {"telco": "align march.toml --dir march/telco"}
        aligned = [stage.together("align march.toml --dir march/bank", march)]
        join = {"telco": "join march.toml --dir march/telco"}
        trained = [stage.together("serve march.toml --dir march/bank", join)]
        predict = "predict march.toml --split test --dir march/bank --out before.csv"
        predicted = [stage.together(predict, join)]
        # April. All align in the folders of March; the shop has a new one.
        april = {"telco": "align april.toml --dir march/telco", "shop": "align april.toml --dir april/shop"}
        aligned.append(stage.together("align april.toml --dir march/bank", april))
        lists = run("align", folder / "april.toml", "--list", "--dir", folder / "march" / "bank")
        (folder / "ids.txt").write_text("\n".join([*pl.read_csv(folder / "before.csv")["id"], *NEW, "p999"]))
        predict = "predict later.toml --ids ids.txt --dir march/bank --out after.csv"
        predicted.append(stage.together(predict, {"telco": "join later.toml --dir march/telco"}))
        warm = {"telco": "join april.toml --dir april/telco --from march/telco"}
        warm["shop"] = "join april.toml --dir april/shop"
        trained.append(stage.together("serve april.toml --dir april/bank --from march/bank", warm))
        one = [run("run", folder / "march.toml", "--out", folder / "one-march")]
        start = ("--from", folder / "one-march")
        one.append(run("run", folder / "april.toml", "--out", folder / "one-april", *start))
        yield Month(folder, aligned, lists, trained, predicted, one)
    finally:
        stage.close()


def event(process: Process, start: str) -> str:
    """The event that begins like this."""
    found = (str(json.loads(line).get("event", "")) for line in process.out.splitlines())
    return next(text for text in found if text.startswith(start))


def test_all_end_well(month: Month) -> None:
    codes = [process.code for process in month.everyone]
    assert codes == [6 if process is month.predicted[1]["bank"] else 0 for process in month.everyone], [
        process.errors for process in month.everyone
    ]


def test_aligning_again_says_what_has_changed(month: Month) -> None:
    first, second = ([event(process, "Alignment") for process in group.values()] for group in month.aligned)
    assert [text.split(".")[0] for text in first] == ["Alignment 1: 60 rows"] * 2
    assert [text.split(".")[0] for text in second] == [
        "Alignment 2: 89 rows, 30 more than alignment 1, 1 fewer",
        "Alignment 2: 89 rows, 30 more than alignment 1, 1 fewer",
        "Alignment 2: 89 rows",  # the shop has no earlier one
    ]
    one, two = month.lists.splitlines()
    assert one.startswith("Alignment 1: 60 rows. ")
    assert one.endswith("Training in this folder began with it.")
    assert two.startswith("Alignment 2: 89 rows, 30 more than alignment 1, 1 fewer. ")
    assert two.endswith("The newest.")


def test_the_old_model_predicts_as_before(month: Month) -> None:
    before, after = month.predictions("before.csv"), month.predictions("after.csv")
    assert before.height > 5
    assert before.equals(after.head(before.height))
    assert ", of alignment 1." in month.predicted[1]["telco"].errors


def test_new_rows_are_predicted_and_what_is_strange_in_them_is_said_at_their_owner(month: Month) -> None:
    new = month.predictions("after.csv").tail(len(NEW) + 1)
    assert new["id"].to_list() == [*NEW, "p999"]  # as they were typed
    assert new["status"].to_list() == ["ok"] * len(NEW) + ["not held by bank, telco"]
    assert new["probability"].null_count() == 1
    bank, telco = (month.predicted[1][name].errors for name in ("bank", "telco"))
    assert "rows were not predicted, such as 'p999' (not held by bank, telco): " in bank
    assert "column 'tariff': " in telco
    assert "a level that no training row had: 'roaming'" in telco
    assert "column 'calls': 30 of 30 rows have a value outside the range of the training rows" in telco
    assert "tariff" not in bank


def test_a_warm_start_says_what_it_keeps(month: Month) -> None:
    bank, telco, shop = (month.trained[1][name].errors for name in ("bank", "telco", "shop"))
    assert "Warm start from march/bank: bank: kept." in bank
    assert "Warm start from march/bank: fusion model: kept, the columns of shop start fresh; shop: new." in bank
    assert "Warm start from march/telco: telco: kept, 1 new column starts fresh." in telco
    assert "a level that no training row had: 'roaming'" in telco
    assert "column 'calls': 89 of 89 rows have a value outside the range" in telco
    assert "Warm start" not in shop
    for text in (bank, telco, shop):
        assert ", of alignment 2." in text
    parts = ["bank: kept", "telco: kept, 1 new column starts fresh"]
    parts += ["fusion model: kept, the columns of shop start fresh", "shop: new."]
    assert "; ".join(parts) in " ".join(month.one_process[1].split())


def test_processes_give_the_model_of_one_process_in_both_months(month: Month) -> None:
    for name in ("march", "april"):
        here, there = month.folder / f"one-{name}", month.folder / name / "bank"
        assert pl.read_parquet(here / "outputs.parquet").equals(pl.read_parquet(there / "outputs.parquet"))
        mine, theirs = (json.loads((place / "records.jsonl").read_text().splitlines()[-1]) for place in (here, there))
        for key in ("step", "surrogate_loss", "validation", "test", "bytes_up", "bytes_down"):
            assert mine[key] == theirs[key], (name, key)


def test_no_process_ended_with_a_traceback(month: Month) -> None:
    assert not [process.errors for process in month.everyone if "Traceback" in process.errors]
