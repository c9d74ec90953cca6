"""The page about a run: read by a parser always, and by a real browser where there is one."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from efvfl import Federation
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError, DataError
from efvfl.runs import metrics, report
from efvfl.runs.build import load_data, make_federation
from efvfl.runs.run_folder import OUTPUTS, SETTINGS, Outputs, load_outputs, load_settings, save_outputs, save_settings
from efvfl.training.record import Record

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
    save_settings(
        folder,
        config,
        dict.fromkeys(made.parties, config.model.width),
        {split: len(part.labels) for split, part in splits.items()},
        sum(p.numel() for p in made.fusion.parameters()),
    )
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


def test_the_page_has_all_sections_and_drawings(text: str) -> None:
    page = Page(text)
    assert page.headings == SECTIONS
    assert page.tags.count("svg") == 4
    says = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert says == [
        "Loss and metric by epoch",
        "Loss on surrogates, and distortion, by epoch",
        "ROC, precision-recall and calibration curves",
        "Megabytes sent by party, beside SVFL",
    ]


def test_the_page_loads_nothing_and_runs_nothing(text: str) -> None:
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert name not in ("src", "srcset", "data", "action", "onload", "onclick"), tag
        if name.endswith("href"):
            assert value.startswith("#"), value
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    known = {value for _, name, value in page.attributes if name == "id"}
    pointed = {value[1:] for _, name, value in page.attributes if name.endswith("href")}
    assert pointed | set(re.findall(r"url\(#([^)]+)\)", text)) <= known
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_names_are_shown_as_they_are(text: str) -> None:
    assert "/one &lt;run&gt; &amp; more</h1>" in text
    assert "<run>" not in text
    assert "a<b>" not in text
    assert Page(text).row("a<b>&", "up")


def test_the_result_is_that_of_the_metrics(run: Run, text: str) -> None:
    _, made, records = run
    page = Page(text)
    assert page.row("loss") == [f"{scores['loss']:.4f}" for scores in vars_of(records[-1])]
    expected = [outputs(made, split) for split in ("validation", "test")]
    found = [metrics.of_loss("binary_cross_entropy", part.output, part.labels) for part in expected]
    for name in ("auc", "ks", "brier", "average_precision"):
        assert page.row(name.replace("_", " ")) == [f"{scores[name]:.4f}" for scores in found]


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
    found = report.svfl_bytes(settings, records[-1].step)
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
    assert page.tags.count("svg") == 4
    assert "there is no distortion here" in text


def test_a_folder_with_records_alone(folder: Path) -> None:
    for name in (OUTPUTS, SETTINGS):
        (folder / name).unlink()
    text = report.page(folder)
    page = Page(text)
    assert page.headings == SECTIONS
    assert page.tags.count("svg") == 2
    assert page.row("south", "up")
    assert "no settings.json" in text


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_other_losses(tmp_path: Path, loss: str) -> None:
    make_run(tmp_path / "run", loss=loss)
    page = Page(report.page(tmp_path / "run"))
    assert page.row("r2" if loss == "mse" else "auc")
    assert page.tags.count("svg") == (3 if loss == "mse" else 4)


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


BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
MEASURE = """<script>
for (const svg of document.querySelectorAll("svg")) {
  const box = svg.getBoundingClientRect();
  svg.setAttribute("data-size", Math.round(box.width) + "x" + Math.round(box.height));
  svg.setAttribute("data-texts", [...svg.querySelectorAll("text")].filter(t => t.getBBox().width > 0).length);
}
console.error("planted");
</script></body>"""


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed here")
def test_a_browser_shows_every_drawing(text: str, tmp_path: Path) -> None:
    """On a copy with a script that measures; an error that it plants shows that errors would be seen."""
    copy = tmp_path / "page.html"
    copy.write_text(text.replace("</body>", MEASURE), encoding="utf-8")
    words = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    words += " --disable-component-update --disable-sync --disable-dev-shm-usage --enable-logging=stderr --dump-dom"
    command = [BROWSER, *words.split(), f"--user-data-dir={tmp_path / 'browser'}", "--window-size=1200,900"]
    done = subprocess.run([*command, copy.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert len(said) == 1, said
    assert "planted" in said[0]
    page = Page(done.stdout.replace("</script>", "").replace(MEASURE.split("</script>")[0], ""))
    sizes = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "data-size")]
    texts = [int(value) for tag, name, value in page.attributes if (tag, name) == ("svg", "data-texts")]
    assert len(sizes) == len(texts) == 4
    assert all(int(side) > 200 for size in sizes for side in size.split("x")), sizes
    assert min(texts) > 10
