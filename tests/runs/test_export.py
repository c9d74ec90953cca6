"""What `efvfl export` writes computes what the federation computes, in programs that know nothing of efvfl."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import missing_rows
import numpy as np
import onnxruntime
import polars
import pytest
import torch
from safetensors import safe_open

from efvfl import Record
from efvfl.cli.main import main
from efvfl.data.tables.encode import Encoder
from efvfl.errors import CheckpointError, DataError, MissingExtraError
from efvfl.runs import export
from efvfl.runs.model_notes import ModelNotes
from efvfl.runs.run import open_trained, train
from efvfl.runs.run_folder import load_outputs

FILE = """
epochs = 3
batch_size = 20
label_holder = "bank"
private_seed = 31415
[data]
align = "none"
[model]
width = 4
[fusion]
combine = "{combine}"
[method]
name = "svfl"  # held-out rows are sent as they are: what the run leaves is what the model says of them
[[party]]
name = "bank"
private_seed = 27182
data = {{ path = "bank.csv", id = "id", label = "bought", categories = "embed" }}
[[party]]
name = "fusion"  # not a good name, but nobody forbids it
data = {{ path = "shop.csv", id = "id" }}
"""
ROWS = 120
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
NAMES = ("bank", "fusion")

pytestmark = pytest.mark.slow


def write_tables(folder: Path, combine: str = "mean") -> Path:
    rng = np.random.default_rng(0)
    ids = [f"r{i:03}" for i in range(ROWS)]
    age, spent = rng.normal(40, 12, ROWS).round(1), rng.exponential(100, ROWS).round(2)
    polars.DataFrame(
        {
            "id": ids,
            "age": age,
            "city": rng.choice(["Bonn", "Kiel", "Ulm | Süd"], ROWS),
            "since": [f"20{10 + i % 9}-0{1 + i % 8}-11" for i in range(ROWS)],
            "bought": np.where(age + rng.normal(0, 5, ROWS) > 40, "yes", "no"),
        }
    ).write_csv(folder / "bank.csv")
    gaps = [None if i % 7 == 0 else float(x) for i, x in enumerate(spent)]
    polars.DataFrame({"id": ids, "spent": gaps, "visits": rng.integers(0, 9, ROWS)}).write_csv(folder / "shop.csv")
    path = folder / "run.toml"
    path.write_text(FILE.format(combine=combine))
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    train(write_tables(folder, "concat"), folder / "run")
    assert main(["export", str(folder / "run"), "--out", str(folder / "out")]) == 0
    return folder


def encoded(folder: Path, name: str, ids: list[str]) -> np.ndarray:
    """The rows of a party by id, from its table and the encoder that was exported, as an outsider would do it."""
    encoder = Encoder.from_json((folder / "out" / "parties" / name / "encoder.json").read_text())
    frame = polars.read_csv(folder / {"bank": "bank.csv", "fusion": "shop.csv"}[name])
    return encoder.transform(polars.DataFrame({"id": ids}).join(frame, on="id", how="left", maintain_order="left"))


def onnx(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_parts_in_onnxruntime_together_predict_what_the_run_predicted(exported: Path, rows: int) -> None:
    outputs = load_outputs(exported / "run")
    assert set(outputs) == {"validation", "test"}
    out = exported / "out"
    for part in outputs.values():
        ids = part.ids[:rows]
        parties = {
            name: onnx(out / "parties" / name / "model.onnx", {"columns": encoded(exported, name, ids)})
            for name in NAMES
        }
        assert {h.shape for h in parties.values()} == {(len(ids), 4)}
        output = onnx(out / "fusion" / "model.onnx", parties)
        np.testing.assert_allclose(output, part.output[:rows].numpy(), rtol=1e-5, atol=1e-5)


def test_so_do_the_programs_of_torch_export(exported: Path) -> None:
    test = load_outputs(exported / "run")["test"]
    parts = []
    for name in NAMES:
        program = torch.export.load(exported / "out" / "parties" / name / "model.pt2").module()
        parts.append(program(torch.from_numpy(encoded(exported, name, test.ids))))
    output = torch.export.load(exported / "out" / "fusion" / "model.pt2").module()(parts)
    torch.testing.assert_close(output.detach().double(), test.output.double(), rtol=1e-5, atol=1e-6)


def test_parameters_have_their_names_and_those_of_the_inputs(exported: Path) -> None:
    trained = open_trained(exported / "run")
    for name in NAMES:
        with safe_open(exported / "out" / "parties" / name / "model.safetensors", "pt") as file:
            assert set(file.keys()) == set(trained.models[name])
            assert all(torch.equal(file.get_tensor(key), tensor) for key, tensor in trained.models[name].items())
            assert json.loads(file.metadata()["inputs"]) == trained.encoders[name].names
    with safe_open(exported / "out" / "fusion" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(trained.fusion)
        assert json.loads(file.metadata()["parties"]) == list(NAMES)


def test_the_card_says_what_it_is_and_no_secret(exported: Path) -> None:
    card = (exported / "out" / "MODEL_CARD.md").read_text()
    last = Record.from_json((exported / "run" / "records.jsonl").read_text().splitlines()[-1])
    assert f"| test | accuracy | {last.test['accuracy']:.4f} |" in card
    assert "| since | date |" in card
    assert "| spent | number | 2 numbers |" in card  # itself, and whether it is missing
    assert '| fusion.combine | `"concat"` |' in card
    assert "Classes in this order: no, yes." in card
    assert "the logit of class 1" in card  # the file names no loss: it follows from the label
    assert "digits" not in card  # the default of data.name, which a run of tables does not have
    everything = b"".join(path.read_bytes() for path in exported.joinpath("out").rglob("*") if path.is_file())
    assert b"31415" not in everything
    assert b"27182" not in everything
    assert str(Path(export.__file__).parents[1]).encode() not in everything  # of the machine that exported it
    assert all(oct(p.stat().st_mode & 0o777) == "0o600" for p in exported.joinpath("out").rglob("*.*"))


def test_a_file_that_computes_something_else_is_not_written(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, notes = open_trained(exported / "run"), ModelNotes.load(exported / "run")
    monkeypatch.setattr(export, "_onnx", lambda program, part: b"")
    monkeypatch.setattr(export, "run_onnx", lambda model, inputs: np.zeros((len(inputs["columns"]), 4), np.float32))
    with pytest.raises(CheckpointError, match="of bank would differ from the model by"):
        export.export(trained, notes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_extra_there_is_no_onnx_and_the_card_says_so(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*unused: object) -> bytes:
        raise MissingExtraError("ONNX needs onnx: pip install 'efvfl[export]'.")

    monkeypatch.setattr(export, "_onnx", missing)
    said: list[str] = []
    files = export.export(open_trained(exported / "run"), ModelNotes.load(exported / "run"), tmp_path, said.append)
    assert sorted(path.suffix for path in files) == sorted([".safetensors", ".pt2"] * 3 + [".json"] * 2 + [".md"])
    assert said == ["Left out: ONNX needs onnx: pip install 'efvfl[export]'."] * 3
    assert (tmp_path / "MODEL_CARD.md").read_text().count("not written") == 3


def test_a_folder_of_an_older_version_is_told_what_to_do(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match=r"there is no models\.json in .*--resume"):
        ModelNotes.load(tmp_path)
    assert main(["export", str(tmp_path)]) == 2
    assert "checkpoint.safetensors" in capsys.readouterr().err


def test_nobody_is_told_of_an_export(exported: Path) -> None:
    """onnxruntime reports to its makers that it is used, from the moment it is imported, unless it is off."""
    code = (
        "import sys, time; from pathlib import Path; import numpy as np; from efvfl.runs.export import run_onnx\n"
        "columns = np.load(sys.argv[2]); run_onnx(Path(sys.argv[1]).read_bytes(), {'columns': columns}); time.sleep(10)"
    )
    columns, model = exported / "columns.npy", exported / "out" / "parties" / "bank" / "model.onnx"
    np.save(columns, encoded(exported, "bank", load_outputs(exported / "run")["test"].ids))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.1)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        quiet = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(model), str(columns)], env=quiet | dict.fromkeys(PROXIES, address)
        )
        called = []
        while process.poll() is None:
            with suppress(TimeoutError):
                called.append(proxy.accept()[1])
    assert (process.returncode, called) == (0, [])


@pytest.mark.parametrize("shows", [False, True])
def test_a_model_for_subsets_takes_who_is_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shows: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    missing_rows.write(tmp_path, {"telco": 0.7})
    config = missing_rows.settings("telco", epochs=1, fusion={"combine": "concat", "shows_presence": shows})
    train(config, tmp_path / "run")
    if not shows:  # the parties' models are the same with it: once is enough
        every = export._parts
        monkeypatch.setattr(export, "_parts", lambda *of: (part for part in every(*of) if not part.name))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    fusion = ModelNotes.load(tmp_path / "run").fusion(open_trained(tmp_path / "run"))
    assert fusion
    h = {name: np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) for name in ("bank", "telco")}
    h["telco"][1] = 0
    present = np.array([[1, 1], [1, 0], [1, 1]], dtype=np.float32)
    output = onnx(tmp_path / "out" / "fusion" / "model.onnx", {**h, "present": present})
    expected = fusion([torch.from_numpy(x) for x in h.values()], torch.from_numpy(present))
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert "`present`: for each party 1 or 0" in (tmp_path / "out" / "MODEL_CARD.md").read_text()

    capsys.readouterr()
    said: list[str] = []
    train(config, tmp_path / "again", start_from=tmp_path / "run", say=said.append)
    assert any("fusion model: kept" in text for text in said), said
