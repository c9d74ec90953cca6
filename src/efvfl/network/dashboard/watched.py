"""What a page shows of a folder: a run in one process, a label holder's or a party's, or an experiment of many runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from efvfl.errors import DataError
from efvfl.experiments.results import Result
from efvfl.network.dashboard.files import LedgerTail, last_lines, read_json, stamp
from efvfl.network.dashboard.run_metrics import metrics_state
from efvfl.network.ops import audit_log
from efvfl.network.ops.metrics import State, render
from efvfl.runs import report_figures
from efvfl.runs.html import Chart
from efvfl.runs.run_folder import RECORDS, SETTINGS, RunSettings, load_settings
from efvfl.runs.status_file import STATUS, is_alive
from efvfl.runs.svfl_bytes import svfl_bytes
from efvfl.training.record import Record, finite_or_null

SILENT: Final = 15.0  # seconds without a sign of life
POINTS: Final = 400  # records that are drawn
RUNS: Final = 200  # that are listed
CURVES: Final = 6  # runs of an experiment that are drawn
PARTS: Final = ".parts"  # of an experiment: a folder for each run that is at work
FILES: Final = (STATUS, RECORDS, audit_log.FILE, SETTINGS)
TIMES: Final = {"compute": "computing", "codec": "compressing", "waiting": "waiting for others"}

_SHOWN = (
    "step",
    "steps",
    "epochs",
    "loss",
    "rate",
    "missing",
    "here",
    "connected",
    "limits",
    "used",
    "warnings",
    "why",
)


def is_run(folder: Path) -> bool:
    """Whether a process has left something in a folder."""
    return any((folder / name).is_file() for name in FILES)


def stage_of(status: Mapping[str, Any] | None, complete: bool, now: float) -> str:
    """Return how a process is: as it said itself, or as it must be if it says nothing any more."""
    if status is None:
        return "finished" if complete else "unknown"
    stage = str(status.get("stage", "unknown"))
    if stage != "running":
        return stage
    alive, said = is_alive(dict(status)), status.get("time")
    if alive is False:
        return "killed"
    return "silent" if not isinstance(said, int | float) or now - said > SILENT else "running"


class WatchedRun:
    """One run or participant."""

    def __init__(self, folder: Path) -> None:
        """Watch this folder."""
        self.folder = folder
        self.ledger = LedgerTail(folder / audit_log.FILE)
        self._records: list[Record] = []
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> dict[str, Any]:
        """Return what is to be seen now, as JSON can hold it."""
        status, settings, records = read_json(self.folder / STATUS), self._settings(), self._read_records()
        self.ledger.look()
        last = records[-1] if records else None
        shown = {key: status[key] for key in _SHOWN if status and key in status}
        sent = self._bytes(status, settings, last)
        found: dict[str, Any] = {
            "name": str((status or {}).get("name") or self.folder.name),
            "holder": str(settings.config.get("label_holder", "")) if settings else "",
            "command": str((status or {}).get("command", "")),
            "stage": stage_of(status, bool(settings and settings.complete), time.time()),
            "seen": (status or {}).get("time"),
            "began": (status or {}).get("began"),
            "status": shown,
            "charts": self._charts(records, status, sent),
            "sent": sent,
            "last": self._last(last),
            "left": self.ledger.table(),
            "read": round(self.ledger.share, 3),
            "peers": self.ledger.peers,
            "absent": [[r.epoch, name, spans] for r in records for name, spans in r.absent.items()][-50:],
        }
        safe: dict[str, Any] = finite_or_null(found)
        return safe

    def _settings(self) -> RunSettings | None:
        try:
            return load_settings(self.folder)
        except (DataError, RecursionError):
            return None

    def _read_records(self) -> list[Record]:
        """Return the records there are; the file is read again only if it has changed."""
        path = self.folder / RECORDS
        if (now := stamp(path)) != self._seen:
            self._seen, self._records = now, []
            for line in last_lines(path):
                try:
                    self._records.append(Record.from_json(line))
                except (ValueError, TypeError, AttributeError, RecursionError):
                    continue
        return self._records

    @staticmethod
    def _last(last: Record | None) -> dict[str, Any] | None:
        if last is None:
            return None
        keys = ("epoch", "step", "seconds", "kept", "surrogate_loss", "train", "validation", "test")
        return {key: getattr(last, key) for key in keys}

    @staticmethod
    def _bytes(status: Mapping[str, Any] | None, settings: RunSettings | None, last: Record | None) -> dict[str, Any]:
        """Return what was sent, and what SVFL would have: as the process says, or as the last record does."""
        if status and isinstance(status.get("sent"), dict):
            return {"sent": status["sent"], "uncompressed": status.get("uncompressed", {})}
        if last is None:
            return {"sent": {}, "uncompressed": {}}
        full = svfl_bytes(settings, last.step) if settings else {}
        names = sorted({name for parties in last.ledger.values() for name in parties})
        sums = {n: [sum(last.ledger.get(way, {}).get(n, {}).values()) for way in ("up", "down")] for n in names}
        return {"sent": sums, "uncompressed": {name: list(full[name]) for name in names if name in full}}

    @staticmethod
    def _charts(
        records: Sequence[Record], status: Mapping[str, Any] | None, sent: Mapping[str, Any]
    ) -> dict[str, Chart]:
        charts = {str(chart["title"]): chart for chart in report_figures.training(_thinned(records))} if records else {}
        full = {name: tuple(of) for name, of in sent["uncompressed"].items()}
        measured = {name: tuple(of) for name, of in sent["sent"].items() if name in full}
        if measured:
            note = "Uncompressed: rows × width × 4 bytes for every step, by arithmetic"
            charts["sent"] = {**report_figures.sent(measured, full), "note": note}
        seconds = (status or {}).get("seconds")
        if isinstance(seconds, dict) and (total := sum(seconds.values())) > 0:
            rows = [[TIMES.get(key, key), [value / total]] for key, value in seconds.items()]
            series = [{"name": "share of the time", "colour": "blue"}]
            charts["time"] = {"title": "Where the time goes", "texts": "share", "series": series, "rows": rows}
        return charts

    def look_short(self) -> dict[str, Any]:
        """Return a line of a list of runs."""
        status, settings, records = read_json(self.folder / STATUS) or {}, self._settings(), self._read_records()
        last = records[-1] if records else None
        safe: dict[str, Any] = finite_or_null(
            {
                "name": str(status.get("name") or self.folder.name),
                "stage": stage_of(status or None, bool(settings and settings.complete), time.time()),
                "step": status.get("step", last.step if last else None),
                "steps": status.get("steps"),
                "scores": (last.validation or last.test) if last else {},
            }
        )
        return safe

    def metrics(self) -> dict[str, State]:
        """Return what Prometheus is told, if a process has been here."""
        status, records = read_json(self.folder / STATUS), self._read_records()
        if status is None:
            return {}
        running = stage_of(status, False, time.time()) == "running"
        return {"": metrics_state(status, running, records[-1] if records else None)}


class WatchedExperiment:
    """The runs of `efvfl reproduce`: those that are finished, and those at work."""

    def __init__(self, folder: Path) -> None:
        """Watch this folder."""
        self.folder = folder
        self._finished: dict[Path, tuple[tuple[int, int, int], Result | None]] = {}
        self._working: dict[Path, WatchedRun] = {}

    def look(self) -> dict[str, Any]:
        """Return the list of runs, and curves of the first ones."""
        results = [found for path in sorted(self.folder.glob("*.json"))[:RUNS] if (found := self._result(path))]
        lines = [_finished_line(result) for result in results]
        lines += [run.look_short() for run in self._at_work()]
        charts = {"results": chart} if (chart := _result_chart(results)) else {}
        stages = {line["stage"] for line in lines}
        stage = next((s for s in ("running", "killed", "silent", "failed", "stopped") if s in stages), "finished")
        done = sum(line["stage"] == "finished" for line in lines)
        safe: dict[str, Any] = finite_or_null(
            {
                "name": self.folder.name,
                "command": "reproduce",
                "stage": stage if lines else "unknown",
                "status": {"step": done, "steps": len(lines)},
                "charts": charts,
                "runs": lines,
            }
        )
        return safe

    def look_short(self) -> dict[str, Any]:
        """Return a line of a list of runs."""
        found = self.look()
        return {"name": found["name"], "stage": found["stage"], **found["status"], "scores": {}}

    def metrics(self) -> dict[str, State]:
        """Return what Prometheus is told: of the runs at work, by their names."""
        return {run.look_short()["name"]: state for run in self._at_work() for state in run.metrics().values()}

    def _at_work(self) -> list[WatchedRun]:
        folders = sorted(path.parent for path in self.folder.glob(f"{PARTS}/*/{STATUS}"))[:RUNS]
        return [self._working.setdefault(folder, WatchedRun(folder)) for folder in folders]

    def _result(self, path: Path) -> Result | None:
        """Return a finished run; a file is read again only if it has changed."""
        known = self._finished.get(path)
        if known is None or known[0] != stamp(path):
            table = read_json(path)
            try:
                result = Result.from_table(table) if table else None
            except (KeyError, TypeError, AttributeError):
                result = None
            known = self._finished[path] = (stamp(path), result)
        return known[1]


def _finished_line(result: Result) -> dict[str, Any]:
    names = [n for n in result.columns if n.startswith(("validation_", "test_")) and result.columns[n]]
    step = result.columns.get("step", [])
    return {
        "name": f"{result.cell}, seed {result.config.get('seed')}",
        "stage": "finished",
        "step": step[-1] if step else None,
        "steps": step[-1] if step else None,
        "scores": {name.replace("_", " "): result.columns[name][-1] for name in names},
    }


def _result_chart(results: Sequence[Result]) -> Chart | None:
    """Return the metric of the first run of each cell, by epoch."""
    first: dict[str, Result] = {}
    for result in results:
        first.setdefault(result.cell, result)
    names = [n for r in first.values() for n in r.columns if n.startswith("validation_") and n != "validation_loss"]
    if not names:
        return None
    colours = ("teal", "orange", "blue", "violet", "grey", "red")
    series = [
        {"name": cell, "colour": colour, "x": of.columns["epoch"], "y": of.columns.get(names[0], [])}
        for colour, (cell, of) in zip(colours, list(first.items())[:CURVES], strict=False)
    ]
    title = names[0].replace("_", " ").capitalize()
    return {"title": f"{title} by epoch", "x": {"label": "epoch"}, "y": {"label": title.lower()}, "series": series}


def _thinned(records: Sequence[Record]) -> Sequence[Record]:
    """Return so many records that a page can draw, the last one among them."""
    every = -(-len(records) // POINTS)
    return records if every <= 1 else [*records[:-1:every], records[-1]]


class Watched:
    """All that is to be seen below a folder."""

    def __init__(self, root: Path) -> None:
        """Watch this folder, and those in it."""
        self.root = root
        self._known: dict[Path, WatchedRun | WatchedExperiment] = {}

    def folders(self) -> list[Path]:
        """Return the folders of runs: this one, or those in it and in theirs."""
        if is_run(self.root) or self._is_experiment(self.root):
            return [self.root]
        found = [path for pattern in ("*", "*/*") for path in sorted(self.root.glob(pattern)) if path.is_dir()]
        runs = [path for path in found if not path.name.startswith(".") and (is_run(path) or self._is_experiment(path))]
        return runs[:RUNS]

    @staticmethod
    def _is_experiment(folder: Path) -> bool:
        return (folder / PARTS).is_dir()

    def look(self, chosen: str = "") -> dict[str, Any]:
        """Return the list of runs, and all of the chosen one; of the first at work, if there is none of that name."""
        names = {self._name(folder): folder for folder in self.folders()}
        if not names:
            return {"runs": [], "chosen": "", "run": None}
        runs = (
            [{"id": each, **self._of(folder).look_short()} for each, folder in names.items()] if len(names) > 1 else []
        )
        at_work = [str(each["id"]) for each in runs if each["stage"] == "running"]
        name = chosen if chosen in names else next(iter(at_work or names))
        return {"runs": runs, "chosen": name, "run": self._of(names[name]).look()}

    def metrics(self) -> bytes:
        """Return what Prometheus is told about all runs, by their names."""
        of_folders = {self._name(folder): self._of(folder).metrics() for folder in self.folders()}
        return render(
            {"/".join(filter(None, (name, p))): s for name, parts in of_folders.items() for p, s in parts.items()}
        )

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.root).as_posix() if folder != self.root else self.root.resolve().name

    def _of(self, folder: Path) -> WatchedRun | WatchedExperiment:
        if folder not in self._known:
            self._known[folder] = WatchedExperiment(folder) if self._is_experiment(folder) else WatchedRun(folder)
        return self._known[folder]
