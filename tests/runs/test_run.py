"""`efvfl.train`: one loop that saves, records and goes on, from Python and from the command line."""

import json
import math
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import config

import efvfl
from efvfl import Callback, Federation, Record, train
from efvfl.cli.main import main
from efvfl.config.agreement import AgreementConfig
from efvfl.config.run_file import PartyConfig, RunConfig
from efvfl.core.agreement import Quorum
from efvfl.errors import CheckpointError, ConfigError
from efvfl.runs import run as run_module
from efvfl.training.callbacks import TrainingStep
from efvfl.util import checkpoint

FILE = """
epochs = 3
batch_size = 48
data = { subset = 120, validation = 0.03, test = 0.02 }
model = { width = 4 }
"""


def without_time(records: Iterable[Record]) -> list[str]:
    return [replace(record, seconds=0.0).to_json() for record in records]


@pytest.mark.slow
def test_the_same_run_from_a_file_from_settings_and_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    settings = config(epochs=3, observe_gradient=True, optimizer=RunConfig().optimizer)
    expected = train(file, tmp_path / "file")
    assert without_time(train(settings, tmp_path / "settings")) == without_time(expected)
    assert main(["run", str(file), "--out", str(tmp_path / "command")]) == 0
    for folder in ("file", "settings", "command"):
        lines = (tmp_path / folder / "records.jsonl").read_text().splitlines()
        assert without_time(Record.from_json(line) for line in lines) == without_time(expected)
    left = {f"checkpoint{kind}.safetensors" for kind in ("", ".previous")}
    left |= {"records.jsonl", "outputs.parquet", "settings.json", "status.json", "models.json"}
    assert {path.name for path in (tmp_path / "settings").iterdir()} == left


def test_a_run_that_is_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    class Interruption(Exception):
        pass

    def interrupt(federation: Federation, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            yield record
            if record.epoch == 2:
                raise Interruption

    run = config(epochs=4)
    whole = train(run, tmp_path / "whole")
    with pytest.raises(Interruption):
        train(run, tmp_path / "parts", watch=interrupt)
    assert len((tmp_path / "parts" / "records.jsonl").read_text().splitlines()) == 2
    assert without_time(train(run, tmp_path / "parts", resume=True)) == without_time(whole)
    with pytest.raises(ConfigError, match="is there already: give --resume"):
        train(run, tmp_path / "parts")
    other = replace(run, batch_size=40, private_seed=1234, party=(PartyConfig("top-left", private_seed=5678),))
    with pytest.raises(ConfigError, match=r"made with other settings \(batch_size: \d+ then, 40 now; party") as refused:
        train(other, tmp_path / "parts", resume=True)
    assert "private_seed" in str(refused.value)  # the name of what is secret, and not its value
    assert not {"1234", "5678"} & set(re.findall(r"\d+", str(refused.value)))
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        train(run, tmp_path / "nothing", resume=True)
    with pytest.raises(ConfigError, match="epochs = 0 leaves nothing to train"):
        train(replace(run, epochs=0), tmp_path / "none")


@pytest.mark.parametrize(
    "agreement", [AgreementConfig(), AgreementConfig(pipeline=3), AgreementConfig(asynchronous=Quorum(reports=3))]
)
def test_a_checkpoint_is_a_minute_old_at_most_however_long_a_record_takes(
    agreement: AgreementConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute is no time here. The run dies in its second epoch, of which there is no record yet."""

    class Killed(Exception):
        pass

    class Power(Callback):
        def on_step(self, step: TrainingStep) -> None:
            if step.number == 6:  # of 4 in an epoch
                raise Killed

    class Numbers(Callback):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_step(self, step: TrainingStep) -> None:
            self.seen.append(step.number)

    parties = tuple(PartyConfig(n, report_seconds=i + 1.0) for i, n in enumerate(("top-left", "bottom-right")))
    run = replace(config(epochs=3, batch_size=30), agreement=agreement, party=parties)
    whole = train(run, tmp_path / "whole")
    monkeypatch.setattr(run_module, "SAVE_SECONDS", 0.0)
    with pytest.raises(Killed):
        train(run, tmp_path / "parts", callbacks=[Power()])
    assert len((tmp_path / "parts" / "records.jsonl").read_text().splitlines()) == 1
    left = Numbers()
    assert without_time(train(run, tmp_path / "parts", resume=True, callbacks=[left])) == without_time(whole)
    assert left.seen == list(range(6, 13))  # the step that was lost, and no other


@pytest.mark.attack(
    by="a disk",
    tries="flips one bit of the checkpoint of `efvfl run`",
    outcome="--resume goes on from the checkpoint before it, with a warning and the same result",
)
def test_a_run_whose_checkpoint_is_damaged_goes_on_from_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(config(epochs=4), tmp_path / "whole")
    train(config(epochs=3), tmp_path / "parts")
    path = tmp_path / "parts" / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert without_time(train(config(epochs=4), tmp_path / "parts", resume=True)) == without_time(whole)
    assert "checkpoint.safetensors is damaged: going on from the checkpoint before it" in caplog.text


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    run = config(epochs=1)
    train(run, tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    state = checkpoint.load(path)
    del state["version"]
    checkpoint.save(path, state)
    with pytest.raises(CheckpointError, match="left by another version of efvfl: go on with that one, or start anew"):
        train(run, tmp_path, resume=True)


def test_what_a_record_cannot_know_is_not_a_number() -> None:
    record = Record(epoch=1, step=3, surrogate_loss=0.5)
    for name in ("gradient", "distortion", "bytes_up", "bytes_down", "paper_bits", "seconds"):
        assert math.isnan(getattr(record, name))
        assert json.loads(record.to_json())[name] is None


def test_settings_say_what_the_run_was_made_with(tmp_path: Path) -> None:
    train(config(epochs=1), tmp_path)
    made_with = json.loads((tmp_path / "settings.json").read_text())["versions"]
    assert made_with["torch"] == torch.__version__
    assert made_with["python"] == platform.python_version()
    assert made_with["efvfl"] == efvfl.__version__
    assert made_with["threads"] == "1"
    assert set(made_with) == {"efvfl", "python", "torch", "numpy", "platform", "machine", "threads"}
