"""The loggers write what TensorBoard, MLflow and Weights & Biases read, to folders, and call nobody."""

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from efvfl import MLflowLogger, Record
from efvfl.cli.main import main
from efvfl.runs.trackers import numbers

FILE = "epochs = 2\nbatch_size = 50\n[data]\nname = 'digits'\nsubset = 100\n[method]\nname = 'svfl'\n"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

pytestmark = pytest.mark.slow


@pytest.fixture
def callers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Send whoever wants to call somebody, here or in a process of its own, to a proxy that only remembers it."""
    seen: list[bytes] = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def remember() -> None:
        while True:
            try:
                connection, _ = proxy.accept()
            except OSError:
                return
            with connection:
                seen.append(connection.recv(200))

    thread = threading.Thread(target=remember, daemon=True)
    thread.start()
    for name in PROXIES:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
    for name in ("NO_PROXY", "no_proxy", "MLFLOW_DISABLE_TELEMETRY", "CI"):
        monkeypatch.delenv(name, raising=False)
    yield seen
    proxy.shutdown(socket.SHUT_RDWR)
    proxy.close()
    thread.join(10.0)


def of_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    assert "subset" in str(events.Tensors("settings/text_summary"))
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def of_mlflow(folder: Path) -> dict[str, dict[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("efvfl")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["data.subset"] == "100"
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: {m.step: m.value for m in metrics} for name, metrics in history.items()}


def entries(data: bytes) -> Iterator[bytes]:
    """Yield the entries of a log as Weights & Biases writes it: a header, then LevelDB's blocks of fragments."""
    assert data.startswith(b":W&B")
    place, whole = 7, b""
    while place < len(data):
        if (left := 2**15 - place % 2**15) < 7:  # no room for the head of a fragment: the rest of the block is empty
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the only fragment, or the last
            yield whole
            whole = b""


def of_wandb(folder: Path) -> dict[str, dict[int, float]]:
    from wandb.proto import wandb_internal_pb2  # made at run time: nothing of it can be checked before

    make: Any = vars(wandb_internal_pb2)["Record"]

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    found: dict[str, dict[int, float]] = {}
    config = ""
    for entry in entries(path.read_bytes()):
        record = make()
        record.ParseFromString(entry)
        config += str(record.run.config)
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        step = record.history.step.num
        for name in set(values) - {"_step", "_timestamp", "_runtime"}:
            found.setdefault(name, {})[step] = values[name]
    assert "data.subset" in config
    return found


def expected(records: list[Record]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in numbers(record).items():
            found.setdefault(name, {})[record.step] = value
    return found


def check(found: Mapping[str, Mapping[int, float]], records: list[Record]) -> None:
    assert sorted(found["step/loss"]) == [1, 2, 3, 4]
    assert found["step/loss"][3] + found["step/loss"][4] == pytest.approx(2 * records[-1].surrogate_loss)
    wanted = expected(records)
    assert set(found) - {"step/loss"} == set(wanted)
    assert {"test/accuracy", "validation/loss", "bytes/up", "gradient"} <= set(wanted)
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name


# SQLAlchemy 2.1 tells MLflow, which calls it, that a loader is going to leave.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
def test_a_run_is_tracked_in_folders_of_its_own(
    callers: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # MLflow does not call its makers from a test
    (tmp_path / "run.toml").write_text(FILE)
    assert main(["run", "run.toml", "--out", "out", "--track", "tensorboard", "mlflow", "wandb"]) == 0
    capsys.readouterr()
    records = [Record.from_json(line) for line in (tmp_path / "out/records.jsonl").read_text().splitlines()]
    check(of_tensorboard(tmp_path / "out/tensorboard"), records)
    check(of_mlflow(tmp_path / "out/mlflow"), records)
    check(of_wandb(tmp_path / "out/wandb"), records)
    assert oct((tmp_path / "out/mlflow/mlflow.db").stat().st_mode & 0o777) == "0o600"
    wandb.teardown()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert callers == []


def test_many_numbers_are_handed_to_mlflow_in_requests_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    class Client:
        def log_batch(self, run_id: str, metrics: list[Any]) -> None:
            sent.append(len(metrics))

    logger = MLflowLogger.__new__(MLflowLogger)
    vars(logger).update(_client=Client(), run_id="r", _waiting=[], _metric=lambda *values: values)
    logger.write({str(i): 1.0 for i in range(2500)}, 1)
    assert sent == [1000, 1000, 500]
