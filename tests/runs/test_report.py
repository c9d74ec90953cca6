"""The page about a run, read by a parser; tests/project/test_pages.py opens it in a browser."""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import efvfl
from efvfl import Federation
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.core.targets import Targets
from efvfl.errors import ConfigError, DataError
from efvfl.runs import metrics, report
from efvfl.runs.alone import LabelHolderRows, leave_alone
from efvfl.runs.build import load_data, make_federation
from efvfl.runs.run import train
from efvfl.runs.run_folder import (
    ALONE,
    OUTPUTS,
    SETTINGS,
    Outputs,
    Sizes,
    load_outputs,
    load_settings,
    save_outputs,
    save_settings,
)
from efvfl.runs.svfl_bytes import svfl_bytes
from efvfl.runs.true_settings import true_settings
from efvfl.training.record import Record
from efvfl.util.finish_request import ask

pytestmark = pytest.mark.system

SECTIONS = ["Result", "Training", "Predictions", "Sent", "Rows", "Who was missing", "Settings"]
SECRET = 987654321

Run = tuple[Path, Federation, list[Record]]


def make_run(folder: Path, **changes: Any) -> tuple[Federation, list[Record]]:
    """Train two parties on a few rows, and leave what a run leaves."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(3)
    x: dict[str, Any] = {name: chance.normal(size=(200, 4)).astype(np.float32) for name in ("a<b>&", "south")}
    y = np.zeros(200)
    y[x["a<b>&"][:, 0] + x["south"][:, 0] > 0] = 1
    classes = changes.get("loss") == "cross_entropy"
    np.savez(folder / "rows.npz", y=y.astype(np.int64) if classes else y.astype(np.float32), **x)
    table = {
        "epochs": 3,
        "batch_size": 48,
        "loss": "binary_cross_entropy",
        "data": {"name": "npz", "path": "rows.npz", "validation": 0.2, "test": 0.2},
        "model": {"width": 4},
        "private_seed": SECRET,
        "party": [{"name": "south", "private_seed": SECRET}],
        **changes,
    }
    config = configs.read(RunConfig, table, "report")
    made = make_federation(config, load_data(config, folder))
    records = list(made.train(config.epochs))
    write_records(folder, records)
    splits = made.splits
    labels = {split: part.labels for split, part in splits.items()}
    sizes = Sizes(
        dict.fromkeys(made.parties, config.model.width), sum(p.numel() for p in made.fusion.parameters()), labels
    )
    save_settings(folder, true_settings(config, {s: len(y) for s, y in labels.items()}, network=False), sizes)
    save_outputs(folder, {s: outputs(made, s) for s in ("validation", "test")})
    return made, records


def outputs(made: Federation, split: str) -> Outputs:
    part = made.splits[split]
    return Outputs([f"{split}:{n}" for n in range(len(part.labels))], part.labels, made.predict(part.features))


def write_records(folder: Path, records: list[Record]) -> None:
    (folder / "records.jsonl").write_text("".join(record.to_json() + "\n" for record in records))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("report") / "one <run> & more"
    return folder, *make_run(folder)


@pytest.fixture(scope="module")
def text(run: Run) -> str:
    """The page about it: drawing takes a second."""
    return report.page(run[0])


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(run[0], tmp_path / "copy"))


class Page(HTMLParser):
    """What a page consists of; refuses one whose tags do not match."""

    VOID = frozenset({"meta", "br", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.cells.append([])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1].append(data)

    def row(self, *start: str) -> list[str]:
        return next(cells for cells in self.cells if cells[: len(start)] == list(start))[len(start) :]


def charts(text: str) -> list[dict[str, Any]]:
    """Return what the script of a page draws."""
    data = re.search(r'<script id="charts" type="application/json">(.*?)</script>', text, re.DOTALL)
    found: list[dict[str, Any]] = json.loads(data[1]) if data else []
    return found


TRAINING = ["Loss by epoch", "Accuracy by epoch", "Accuracy by bytes", "Distortion by epoch"]
BINARY = ["ROC", "Precision and recall", "Calibration", "Lift"]


def test_the_page_has_all_sections_and_every_chart_once(text: str) -> None:
    page = Page(text)
    assert page.headings == SECTIONS
    titles = [chart["title"] for chart in charts(text)]
    assert titles == [*TRAINING, *BINARY, "Bytes sent, by party"]
    places = [value for tag, name, value in page.attributes if (tag, name) == ("figure", "id")]
    assert places == [f"chart-{number}" for number in range(len(titles))]


def test_charts_have_what_was_recorded(run: Run, text: str) -> None:
    _, made, records = run
    by_title = {chart["title"]: {s["name"]: s for s in chart.get("series", ())} for chart in charts(text)}
    losses = by_title["Loss by epoch"]
    assert losses["validation"]["y"] == pytest.approx([r.validation["loss"] for r in records], rel=1e-5)
    assert losses["surrogates"]["x"] == [1, 2, 3]
    sent = [(r.bytes_up + r.bytes_down) / 1e6 for r in records]
    assert by_title["Accuracy by bytes"]["test"]["x"] == pytest.approx(sent, rel=1e-5)
    part = outputs(made, "test")
    curve = metrics.lift(part.labels.numpy(), part.output.sigmoid().reshape(-1).numpy())
    assert by_title["Lift"]["test"]["y"] == pytest.approx(curve[1].tolist(), rel=1e-5)


def test_the_page_loads_nothing_and_runs_its_own_script_alone(text: str) -> None:
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert name not in ("src", "srcset", "data", "action", "style", "onload", "onclick"), (tag, value)
        if name.endswith("href"):
            assert value.startswith("#"), value
    assert "@import" not in text
    assert "url(" not in text
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for tag, name, value in page.attributes if (tag, name) == ("meta", "content"))
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';" in policy
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_headline_says_what_matters(run: Run, text: str) -> None:
    folder, made, records = run
    part = outputs(made, "test")
    auc = metrics.of_loss("binary_cross_entropy", part.output, part.labels)["auc"]
    full = 2 * 2 * records[-1].epoch * 120 * 4 * 4
    fewer = full / (records[-1].bytes_up + records[-1].bytes_down)
    assert f"<p class='headline'>AUC {auc:.3f} on 40 test rows; {fewer:,.1f} times fewer bytes than without" in text
    settings = load_settings(folder)
    assert settings is not None
    day = datetime.fromisoformat(settings.ended)
    assert f"{day.day} {day:%B %Y, %H:%M} UTC, efvfl {efvfl.__version__}." in text


def test_the_date_is_that_of_the_runs_end(folder: Path) -> None:
    path = folder / SETTINGS
    table = json.loads(path.read_text()) | {"ended": "2024-02-03T04:05:06+00:00"}
    path.write_text(json.dumps(table))
    assert "3 February 2024, 04:05 UTC" in report.page(folder)
    path.write_text(json.dumps(table | {"complete": False, "ended": ""}))
    assert "this run is not complete" in report.page(folder)


def test_the_label_holder_alone_is_compared_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From the command to the page; the other party is what the label depends on as well."""
    make_run(tmp_path / "made", label_holder="south", epochs=6, optimizer={"name": "Adam", "lr": 0.02})
    lines = [
        'epochs = 6\nbatch_size = 48\nloss = "binary_cross_entropy"\nlabel_holder = "south"',
        '[data]\nname = "npz"\npath = "rows.npz"\nvalidation = 0.2\ntest = 0.2',
        '[model]\nwidth = 4\n[optimizer]\nname = "Adam"\nlr = 0.02',
    ]
    (tmp_path / "made" / "run.toml").write_text("\n".join(lines))
    records = train(tmp_path / "made" / "run.toml", tmp_path / "run", alone=True)
    alone, together = load_outputs(tmp_path / "run", ALONE), load_outputs(tmp_path / "run")
    assert alone["test"].ids == together["test"].ids
    assert alone["test"].labels.tolist() == together["test"].labels.tolist()
    scores = [metrics.of_loss("binary_cross_entropy", o["test"].output, o["test"].labels) for o in (together, alone)]
    assert scores[0]["auc"] > scores[1]["auc"]
    text = report.page(tmp_path / "run")
    assert f"AUC {scores[0]['auc']:.3f} on 40 test rows; the label holder alone has {scores[1]['auc']:.3f};" in text
    assert [s["name"] for s in next(c for c in charts(text) if c["title"] == "ROC")["series"]] == [
        "test",
        "label holder alone",
    ]
    with caplog.at_level("WARNING", "efvfl"):  # labels that the loss refuses: the run is as good without it
        config = configs.load(tmp_path / "made" / "run.toml")
        rows = LabelHolderRows({"train": torch.zeros(3, 2)}, {"train": Targets(torch.full((3,), 7.0))}, {}, 1)
        leave_alone(tmp_path / "none", config, rows)
    assert "could not be trained alone" in caplog.text
    assert not (tmp_path / "none").exists()
    again = train(tmp_path / "made" / "run.toml", tmp_path / "without")
    assert [r.ledger for r in again] == [r.ledger for r in records]  # nothing was sent for it
    assert not (tmp_path / "without" / ALONE).exists()


def test_who_is_asked_to_finish_compares_with_no_more_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many epochs to go, the label holder once trained alone for all of them when the run was over."""
    trained: list[int] = []

    def few(made: Federation, epochs: int, *more: Any, **options: Any) -> Iterator[Record]:
        trained.append(epochs)
        return whole(made, min(epochs, 3), *more, **options)

    whole = Federation.train
    monkeypatch.setattr(Federation, "train", few)
    make_run(tmp_path / "made")
    (tmp_path / "made" / "run.toml").write_text(
        'epochs = 1_000_000\nbatch_size = 48\nloss = "binary_cross_entropy"\nlabel_holder = "south"\n'
        'data = { name = "npz", path = "rows.npz", validation = 0.2, test = 0.2 }\nmodel = { width = 4 }\n'
    )

    def ask_at_once(made: Federation, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            ask(tmp_path / "run")
            yield record

    records = train(tmp_path / "made" / "run.toml", tmp_path / "run", watch=ask_at_once, alone=True)
    assert records[-1].asked
    assert trained[-1] == records[-1].epoch == 2
    assert load_outputs(tmp_path / "run", ALONE)


def test_settings_are_those_of_this_run(tmp_path: Path) -> None:
    """A file without [data] once claimed that its tables were the digits of the demo."""
    for name in ("bank", "telco"):
        rows = "".join(f"{i},{(i * 7) % 11},{i % 2}\n" for i in range(60))
        (tmp_path / f"{name}.csv").write_text(f"id,{name},y\n{rows}")
    party = '[[party]]\nname = "{0}"\ndata = {{ path = "{0}.csv", id = "id", columns = ["{0}"]{1} }}\n'
    text = 'epochs = 2\nloss = "binary_cross_entropy"\nlabel_holder = "bank"\n'
    text += party.format("bank", ', label = "y"') + party.format("telco", "")
    (tmp_path / "run.toml").write_text(text)
    train(tmp_path / "run.toml", tmp_path / "run")
    page = Page(report.page(tmp_path / "run"))
    assert page.row("data.name") == ['"table"']
    assert page.row("observe_every") == ["1"]
    assert page.row("patience") == ["10"]
    assert page.row("evaluation") == ['"compressed"']
    keys = [cells[0] for cells in page.cells if cells]
    assert not {"data.augment", "agreement.downlink", "network.address"} & set(keys)
    settings = load_settings(tmp_path / "run")
    assert settings is not None
    assert {split: sum(counts.values()) for split, counts in settings.balance.items()} == settings.rows
    assert page.row("1")[0].startswith(f"{settings.balance['train']['1']} (")


def test_names_are_shown_as_they_are(text: str) -> None:
    assert "/one &lt;run&gt; &amp; more</h1>" in text
    assert "<run>" not in text
    assert "a<b>" not in text
    assert Page(text).row("a<b>&", "up")


def test_the_result_is_that_of_the_metrics(run: Run, text: str) -> None:
    _, made, records = run
    page = Page(text)
    # The loss of training is the same, and is not there twice.
    assert page.row("log loss") == [f"{scores['loss']:.4f}" for scores in vars_of(records[-1])]
    expected = [outputs(made, split) for split in ("validation", "test")]
    found = [metrics.of_loss("binary_cross_entropy", part.output, part.labels) for part in expected]
    shown = {"auc": "AUC", "ks": "KS statistic", "brier": "Brier score", "average_precision": "average precision"}
    for name, title in shown.items():
        assert page.row(title) == [f"{scores[name]:.4f}" for scores in found]
    assert not [cells for cells in page.cells if cells[:1] == ["loss"] and len(cells) > 2]  # but a setting


def vars_of(record: Record) -> list[dict[str, float]]:
    return [record.train, record.validation, record.test]


def test_rows_and_settings(text: str) -> None:
    page = Page(text)
    assert ["train", "120"] in page.cells
    assert ["validation", "40"] in page.cells
    assert ["south", "4"] in page.cells
    assert page.row("batch_size") == ["48"]
    assert page.row("method.compressor.name") == ['"topk"']
    assert page.row("party[0].name") == ['"south"']


def test_private_seeds_are_not_in_it(run: Run, text: str) -> None:
    assert str(SECRET) not in (run[0] / SETTINGS).read_text()
    assert str(SECRET) not in text


AGREEMENTS: dict[str, dict[str, Any]] = {
    "private labels": {},
    "a label holder with columns": {"label_holder": "south"},
    "shared labels": {"agreement": {"labels": "shared"}},
    "a label holder with columns, shared labels": {"label_holder": "south", "agreement": {"labels": "shared"}},
    "aggregate": {"agreement": {"labels": "shared", "downlink": "aggregate"}},
    "replicas": {"agreement": {"labels": "shared", "fusion": "replicate"}},
    "all rows reported": {"agreement": {"labels": "shared", "reports": "all"}},
    "full batch": {"batch_size": 0},
    "independent batches": {"batch_order": "independent"},
}


@pytest.mark.parametrize("case", AGREEMENTS)
def test_svfl_is_counted_as_it_sends(tmp_path: Path, case: str) -> None:
    """Against a real run of SVFL: nothing but headers, of a few bytes a message, are on top."""
    made, records = make_run(tmp_path / "run", method={"name": "svfl"}, **AGREEMENTS[case])
    settings = load_settings(tmp_path / "run")
    assert settings is not None
    found = svfl_bytes(settings, records[-1].step)
    for name in made.parties:
        for way, direction in enumerate(("up", "down")):
            measured = made.ledger.total(direction, name)  # type: ignore[arg-type]
            assert 0 <= measured - found[name][way] <= 40 * (records[-1].step + 2), (name, direction)


def test_bytes_are_shown_beside_those_of_svfl(run: Run, text: str) -> None:
    _, made, records = run
    page = Page(text)
    full = records[-1].epoch * 120 * 4 * 4
    for direction in ("up", "down"):
        sent = made.ledger.total(direction, "south")
        assert page.row("south", direction) == [f"{sent:,}", f"{full:,}", f"{sent / full:.1%}"]


def test_who_was_missing(folder: Path, text: str) -> None:
    assert "<p>Nobody.</p>" in text
    records = report.read_records(folder)
    records[1] = replace(records[1], absent={"south": [[3, 3], [1200, 1300]]})
    write_records(folder, records)
    assert Page(report.page(folder)).row("2", "south") == ["3 to 3, 1,200 to 1,300"]


def test_the_folder_of_a_server(folder: Path) -> None:
    """No training scores and no distortion, but a ledger of all frames, the last line cut by a crash."""
    records = report.read_records(folder)
    write_records(folder, [replace(r, train={}, gradient=float("nan"), distortion=float("nan")) for r in records])
    line = {"time": 1.0, "peer": "south", "direction": "in", "kind": "report", "number": 1, "step": 1, "payload": 90}
    lines = [json.dumps(line | {"frame": size}) for size in (100, 1000)]
    (folder / "ledger.jsonl").write_text("\n".join([*lines, lines[0][:30]]))
    text = report.page(folder)
    page = Page(text)
    assert page.row("south", "in", "report") == ["2", "1,100"]
    assert page.headings == SECTIONS
    assert [chart["title"] for chart in charts(text)][:4] == [*TRAINING[:3], "ROC"]
    assert "there is no distortion here" in text


def test_a_folder_with_records_alone(folder: Path) -> None:
    for name in (OUTPUTS, SETTINGS):
        (folder / name).unlink()
    text = report.page(folder)
    page = Page(text)
    assert page.headings == SECTIONS
    assert [chart["title"] for chart in charts(text)] == TRAINING
    assert page.row("south", "up")
    assert "no settings.json" in text


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_other_losses(tmp_path: Path, loss: str) -> None:
    make_run(tmp_path / "run", loss=loss)
    text = report.page(tmp_path / "run")
    assert Page(text).row("R²" if loss == "mse" else "AUC")
    titles = {chart["title"] for chart in charts(text)}
    assert (set(BINARY) if loss == "cross_entropy" else {"Observed by predicted", "Errors"}) < titles


def test_more_than_two_classes(folder: Path) -> None:
    path = folder / SETTINGS
    table = json.loads(path.read_text())
    path.write_text(json.dumps(table | {"config": table["config"] | {"loss": "cross_entropy"}}))
    output = torch.eye(3)[torch.arange(30) % 3] * 2.0
    labels = torch.cat([torch.zeros(10), torch.ones(10), torch.full((10,), 2.0)])
    save_outputs(folder, {"test": Outputs([str(n) for n in range(30)], labels, output)})
    text = report.page(folder)
    assert {"Calibration", "Rows that are predicted right, by class"} < {chart["title"] for chart in charts(text)}
    assert Page(text).row("2", "3", "3") == ["4"]  # of class 2: three rows were taken for 0, three for 1, four for 2
    assert "Accuracy 0." in text


def test_a_record_without_scores(folder: Path) -> None:
    write_records(folder, [Record(epoch=1, step=3, surrogate_loss=0.5)])
    (folder / OUTPUTS).unlink()
    text = report.page(folder)
    assert Page(text).headings == SECTIONS
    assert "Nothing was evaluated." in text


def test_outputs_come_back_as_they_were(tmp_path: Path) -> None:
    part = Outputs(["0001", "ü"], torch.tensor([0, 2]), torch.tensor([[0.1, -3.5e-20, 7.0], [1.0, 2.0, 3.0]]))
    single = Outputs(["x"], torch.tensor([1]), torch.tensor([[0.0, 0.0, 1.0]]))
    save_outputs(tmp_path, {"test": part, "validation": single})
    found = load_outputs(tmp_path)
    assert list(found) == ["test", "validation"]
    assert found["test"].ids == part.ids
    assert found["test"].labels.tolist() == part.labels.tolist()
    assert torch.equal(found["test"].output, part.output.double())


def _break_line(folder: Path) -> None:
    path = folder / "records.jsonl"
    path.write_text(path.read_text().splitlines()[0] + '\n{"epoch": 2}\n')


BROKEN: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "nothing": (lambda f: (f / "records.jsonl").unlink(), ConfigError, "cannot read .*records.jsonl.*Name the folder"),
    "no record": (
        lambda f: (f / "records.jsonl").write_text(""),
        ConfigError,
        "expected records in .*, got none",
    ),
    "a broken record": (_break_line, DataError, "line 2 of .*records.jsonl is not a record"),
    "no parquet": (
        lambda f: (f / OUTPUTS).write_bytes(b"junk"),
        DataError,
        "expected the columns split, id, label",
    ),
    "no settings": (lambda f: (f / SETTINGS).write_text("{}"), DataError, "expected the settings of a run in"),
    "no JSON": (lambda f: (f / SETTINGS).write_text("{"), DataError, "expected the settings of a run in"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_is_none(folder: Path, case: str) -> None:
    spoil, kind, text = BROKEN[case]
    spoil(folder)
    with pytest.raises(kind, match=text):
        report.write(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.slow
def test_where_the_page_goes_and_that_it_is_the_same_every_time(run: Run, text: str, tmp_path: Path) -> None:
    for out, path in ((None, run[0] / "report.html"), (tmp_path / "new" / "a.html", tmp_path / "new" / "a.html")):
        assert report.write(run[0], out) == path
        assert path.read_text(encoding="utf-8") == text
        path.unlink()
