"""Training that is ended where it stands: as if that step were the last, in one process and over a network."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import Fate, Network, assert_same, config, federation, outcome
from torch import equal
from warm_processes import Process

from efvfl import Federation, Record, train
from efvfl.cli.main import main
from efvfl.config.run_file import RunConfig
from efvfl.runs import run_folder
from efvfl.runs.status_file import STATUS
from efvfl.training.schedule import Schedule
from efvfl.training.stopping import ending
from efvfl.util.finish_request import NAME, ask, finish_on_signal
from efvfl.wire.ledger import Ledger

STEPS = 3  # of an epoch
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pipeline": {"agreement": {"labels": "private", "pipeline": 2}, "data": {"validation": 0.03, "test": 0.02}},
    "patience": {"patience": 20, "agreement": {"labels": "private"}},
}


def run(**changes: Any) -> RunConfig:
    return config(epochs=9, **changes)


def ended(chosen: RunConfig, step: int) -> tuple[Federation, list[Record]]:
    """A run in one process that is asked to finish once so many steps are done."""
    made = federation(chosen)
    made.driver.asked = lambda: made.server.step_number >= step
    return made, made.fit(chosen.epochs, gradient=False)


@pytest.mark.parametrize("method", METHODS)
def test_it_ends_with_the_steps_under_way_and_a_record(method: str) -> None:
    chosen = run(**METHODS[method])
    window = chosen.agreement.build().window_here
    made, records = ended(chosen, 4)
    last = records[-1]
    assert last.asked
    assert 4 < last.step <= 4 + window
    assert last.epoch == 2
    assert last.validation
    assert last.test
    assert not any(record.asked for record in records[:-1])
    assert "Finished as asked after" in ending(last, chosen.epochs)
    assert not made.transport.under_way
    # The same steps in a run that was planned so give the same model.
    if method == "plain":
        other = federation(chosen)
        for _ in other.driver.run(Schedule(STEPS, 9, 1, 1, end=last.step), lambda: other._observe(False)):
            pass
        for left, right in zip(made.models, other.models, strict=True):
            assert all(equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))
    # No more of it, unless more epochs are asked for.
    made.driver.asked = lambda: False
    assert not made.fit(chosen.epochs)
    more = made.fit(chosen.epochs + 1, gradient=False)
    assert more[-1].step == 10 * STEPS
    assert not more[-1].asked


def test_patience_keeps_the_best() -> None:
    chosen = run(patience=20, agreement={"labels": "private"}, optimizer={"name": "SGD", "lr": 60.0})
    made, records = ended(chosen, 7 * STEPS - 1)
    last = records[-1]
    assert last.kept == min(records[:-1], key=lambda record: record.validation["loss"]).epoch
    assert last.kept < last.epoch
    assert f"The model of epoch {last.kept:g} is kept." in ending(last, 9)
    assert made.record(gradient=False).validation == pytest.approx(last.validation)


@pytest.mark.slow
def test_a_request_in_the_folder_ends_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text("epochs = 4\nbatch_size = 48\nobserve_gradient = false\ndata = { subset = 120 }\n")
    asking = threading.Thread(target=main, args=(["finish", str(out), "--wait", "60"],))
    save = run_folder.save_records

    def then_ask(folder: Path, records: Sequence[Record]) -> None:
        save(folder, records)
        if len(records) == 1:
            asking.start()
            while not (out / NAME).exists():
                time.sleep(0.001)

    monkeypatch.setattr(run_folder, "save_records", then_ask)
    assert main(["run", str(file), "--out", str(out)]) == 0
    asking.join()
    shown = capsys.readouterr().out
    assert "Finished as asked after 4 steps, in epoch 2 of 4." in shown
    assert "It ends with the step under way" in shown
    settings = run_folder.load_settings(out)
    assert settings is not None  # a report can be made, and another run can start from it
    lines = (out / "records.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert main(["run", str(file), "--out", str(out), "--resume"]) == 0  # nothing is left to do
    assert (out / "records.jsonl").read_text().splitlines() == lines
    assert main(["run", str(file), "--out", str(out), "--resume", "--epochs", "5"]) == 0
    last = Record.from_json((out / "records.jsonl").read_text().splitlines()[-1])
    assert (last.epoch, last.step, last.asked) == (5, 15, False)
    assert not (out / NAME).exists()


@pytest.mark.slow
def test_a_signal_asks_for_the_same_and_nobody_is_asked_in_vain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(made: Federation, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record.epoch == 2:
                os.kill(os.getpid(), signal.SIGUSR1)
            yield record

    with finish_on_signal(tmp_path / "out"):
        records = train(run(), tmp_path / "out", watch=interrupt)
    assert (records[-1].step, records[-1].asked) == (2 * STEPS + 1, True)
    (tmp_path / "idle").mkdir()
    assert main(["finish", str(tmp_path / "idle"), "--wait", "0.1"]) == 2
    assert "nobody has taken the request" in capsys.readouterr().err
    assert not list((tmp_path / "idle").iterdir())
    assert main(["finish", str(tmp_path / "none")]) == 2
    for folder, how in (("out", "has finished"), ("killed", "was killed")):
        (tmp_path / folder).mkdir(exist_ok=True)
        if folder == "killed":
            status = json.loads((tmp_path / "out" / STATUS).read_text()) | {"stage": "running", "born": "long ago"}
            (tmp_path / folder / STATUS).write_text(json.dumps(status))
        capsys.readouterr()
        assert main(["finish", str(tmp_path / folder)]) == 2  # at once
        assert f"the last process there {how}" in capsys.readouterr().err
    ask(tmp_path / "idle")  # left behind: a run that begins afresh is not asked
    assert not any(record.asked for record in train(replace(run(), epochs=2), tmp_path / "idle"))


FEDERATION = """
epochs = 1_000_000
batch_size = 50
[data]
path = "labels.npz"
[[party]]
name = "north"
data = { path = "north.npz" }
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "signal"])
def test_so_does_the_server_of_a_federation(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "north.npz", x=rng.normal(size=(60, 3)).astype(np.float32))
    np.savez(tmp_path / "labels.npz", y=rng.integers(0, 2, 60))
    (tmp_path / "fed.toml").write_text(FEDERATION)
    words, folder = ("fed.toml", "--insecure", "--status", "json"), tmp_path / "runs" / "fed" / "server"
    serve = Process(tmp_path, "serve", *words, "--address", "127.0.0.1:0")
    north = Process(tmp_path, "join", *words, "--address", f"127.0.0.1:{serve.port()}", "--party", "north")
    try:
        while not (folder / "records.jsonl").exists():
            assert serve.running, serve.end().errors
            time.sleep(0.01)
        if how == "command":
            assert main(["finish", str(folder), "--wait", "300"]) == 0
            assert "It ends with the step under way" in capsys.readouterr().out
        else:
            os.kill(serve.pid, signal.SIGUSR1)
        assert serve.end().code == 0, serve.errors
        assert north.end().code == 0, north.errors
    finally:
        for process in (serve, north):
            process.kill()
    last = Record.from_json((folder / "records.jsonl").read_text().splitlines()[-1])
    assert last.asked
    assert last.validation
    assert f"Finished as asked after {last.step:,} steps" in serve.out
    assert f"Done after {last.step:,} steps" in north.out
    assert run_folder.load_outputs(folder)  # there is a model, and what a report needs


def reference(chosen: RunConfig, step: int) -> Any:
    """A run in one process that ends after this step."""
    made, records = ended(chosen, step - chosen.agreement.build().window_here)
    assert records[-1].step == step
    own = {}
    for name in made.parties:
        own[name] = Ledger()
        own[name].bytes |= {key: n for key, n in made.ledger.bytes.items() if key[1] == name}
    return outcome(records, made.server, made.parties, made.ledger, own)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("victim", ["", "top-left"])
def test_over_a_network_with_kills(method: str, victim: str, tmp_path: Path) -> None:
    """Whoever is killed, and whenever: before the decision, between its two checkpoints, and after it."""
    chosen = run(**METHODS[method])
    deaths = iter((21, 6, 9, 4, 13))

    def fates(name: str) -> Fate:
        return Fate(next(deaths, 0)) if name == victim else Fate()

    with Network(chosen, tmp_path, lives=6, fates=fates) as network:
        network.join_all()
        served = network._served()

        def watch() -> None:
            here = network.serving
            if here is not None and here.server.step_number >= 4 and not here.schedule.end and not here.request:
                ask(here.folder)

        network.watch = watch
        assert served.schedule.end == 0
        result = network.run()
        here = network._served()
        assert here.records[-1].asked
        assert here.finished
        assert not here.request
        assert_same(result, reference(chosen, here.records[-1].step))
