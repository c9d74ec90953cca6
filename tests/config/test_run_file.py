"""A run is a file: every key known, every type right, every mistake answered."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paths import ROOT

from efvfl import QSGD, Optimizer, Ramp, TopK
from efvfl.compress import REGISTRY, base
from efvfl.config.run_file import RunConfig, compressor_from, load, read
from efvfl.errors import ConfigError
from efvfl.runs.build import load_data, make_federation, make_optimizer

FULL = """
seed = 3
epochs = 2
batch_size = 64
loss = "cross_entropy"
label_holder = "top-left"

[data]
name = "digits"
validation = 0.2
test = 0.1

[model]
hidden = [8]
width = 6
last = "tanh"

[fusion]
combine = "concat"
hidden = [12]

[method]
name = "efvfl"
compressor = { name = "topk", ratio = { start = 0.1, stop = 0.5, steps = 10 } }
down = { name = "qsgd", bits = 4, levels = "text" }
start = "exact"

[agreement]
labels = "private"

[optimizer]
name = "AdamW"
lr = 0.01
scheduler = { name = "StepLR", step_size = 1, gamma = 0.5 }

[[party]]
name = "bottom-right"
model = { width = 3 }
"""


def test_a_whole_file_becomes_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FULL)
    config = load(path)
    federation = make_federation(config, load_data(config, tmp_path))
    assert federation.parties["top-left"].up.compressor.name == "identity"  # sits next to the server
    up = federation.parties["bottom-right"].up
    assert up.width == (3,)
    assert up.compressor == TopK(Ramp(0.1, 0.5, 10))
    assert federation.parties["top-right"].label_mode.down.compressor == QSGD(4, "text")  # type: ignore[attr-defined]
    assert federation.fusion.head[1].in_features == 6 * 3 + 3  # type: ignore[index]
    records = list(federation.train(config.epochs))
    assert [r.epoch for r in records] == [1, 2]
    assert set(records[-1].test) == {"loss", "accuracy"}


def test_the_same_file_gives_the_same_run_and_another_seed_another() -> None:
    def final(seed: int) -> torch.Tensor:
        config = RunConfig(seed=seed, epochs=1)
        federation = make_federation(config, load_data(config, Path()))
        torch.rand(7)  # nothing may depend on what ran before
        list(federation.train(1))
        return federation.server.block.vector()

    assert torch.equal(final(1), final(1))
    assert not torch.equal(final(1), final(2))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("epoch = 3", r"unknown key 'epoch'\. Did you mean 'epochs'\?"),
        ("[methd]", r"Did you mean 'method'\?"),
        ("[agreement]\nlabel = 'private'", r"agreement: unknown key 'label'\. Did you mean 'labels'\?"),
        ("[agreement]\nlabels = 'hidden'", r"labels: unknown value 'hidden'.*Known: private, shared"),
        ("epochs = 'many'", "epochs: expected a whole number, got 'many'"),
        ("epochs = true", "expected a whole number, got True"),
        ("epochs = 1.5", "expected a whole number, got 1.5"),
        ("model = 3", "model: expected a table, got 3"),
        ("[model]\nhidden = 3", "hidden: expected a list, got 3"),
        ("[model]\nhidden = ['a']", r"hidden\[0\]: expected a whole number, got 'a'"),
        ("[[party]]\nmodel = {}", "key 'name' is missing"),
        ("epochs = ", "is not TOML"),
        ("epochs = -1", "epochs: expected at least 0, got -1"),
        ("observe_every = 0", "observe_every: expected at least 1, got 0"),
        ("threads = -1", "threads: expected at least 0, got -1"),
        ("[model]\nwidth = 0", "width: expected at least 1, got 0"),
        ("[model]\nhidden = [-3]", r"hidden\[0\]: expected at least 1, got -3"),
        (
            "[method]\ndown = { name = 'sign' }\n[agreement]\nlabels = 'shared'",
            "method.down does not go with shared labels: .* no effect",
        ),
        ("[method]\nfusion = { name = 'sign' }", "method.fusion does not go with .* no effect"),
        (
            "[method]\nname = 'cvfl'\nstart = 'exact'",
            "start = 'exact' or 'mean' does not go with a method without surrogates.*: .* no effect",
        ),
        (
            "[agreement]\ndownlink = 'aggregate'",
            "agreement.downlink does not go with private labels: it would have no effect",
        ),
        (
            "[agreement]\nfusion = 'replicate'",
            "agreement.fusion does not go with private labels: it would have no effect",
        ),
        ("[agreement]\nlabels = 'shared'\nfusion = 'compress'", "fusion = 'compress' does not go with .*method.fusion"),
        ("[model]\noptions = { foo = 3 }", "model.options is set, but it would have no effect: 'mlp' does not get it"),
        ("[model]\nname = 'mine:net'\nlast = 'tanh'", r"model.last is set, but .*'mine:net'.* Give it in options"),
        ("[model]\nname = 'mine:net'\nhidden = [3]", "model.hidden is set, but it would have no effect"),
        ("[model]\nname = 'resnet18'\nactivation = 'tanh'", r"model.activation is set, but .* Leave it out"),
        ("[fusion]\noptions = { foo = 3 }", "fusion.options is set, but it would have no effect"),
        ("[fusion]\nname = 'mine:net'\nhidden = [3]", "fusion.hidden is set, but it would have no effect"),
        ("[[party]]\nname = 'bank'\n[[party]]\nname = 'bank'", r"2 \[\[party\]\] of the name 'bank'"),
        ("[[party]]\nname = 'server'", "which is the label holder's certificate: rename it"),
        ("[network]\naddress = '127.0.0.1'", "address: expected host:port, .* got '127.0.0.1'"),
        ("[network]\naddress = 'vfl.example.org:port'", "expected host:port"),
        ("[network]\naddress = ':7143'", "expected host:port"),
    ],
)
def test_mistakes_are_answered(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=error):
        load(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[method]\ncompressor = { name = 'topkk' }", r"no compressor 'topkk'\. Did you mean 'topk'\?"),
        ("[method]\ncompressor = { name = 'topk', rate = 1 }", r"unknown key 'rate'\. Did you mean 'ratio'\?"),
        (
            "[method]\ncompressor = { name = 'topk', ratio = 2.0 }",
            "ratio: expected a number above 0 and at most 1, got 2.0",
        ),
        (
            "[method]\ncompressor = { name = 'topk', ratio = 'x' }",
            "expected a number or a ramp { start, stop, steps }, got",
        ),
        ("[method]\ncompressor = {}", "needs a compressor"),
        ("[method]\ncompressor = { ratio = 0.1 }", "expected a compressor with a name"),
        ("[agreement]\nlocal_steps = 2", "local_steps does not go with private labels"),
        ("[optimizer]\nname = 'SDG'\nlr = 1.0", r"no optimiser 'SDG'\. Did you mean 'SGD'\?"),
        ("[optimizer]\nname = 'SGD'\nlearning = 1.0", "does not take"),
        ("[optimizer]\nname = 'LBFGS'", "choose another optimiser"),
        ("[optimizer]\nlr = -1.0", "does not take"),
        ("[optimizer]\nlr = 1.0\nnesterov = true", "does not take"),
        ("[optimizer]\nlr = 1.0\nscheduler = { name = 'StepLr', step_size = 1 }", r"Did you mean 'StepLR'\?"),
        ("patience = -1", "patience: expected at least 0, got -1"),
        ("evaluation = 'none'", "evaluation: expected 'exact' or 'compressed' or .*, got 'none'"),
        ("[optimizer]\nlr = 1.0\nscheduler = { step_size = 1 }", "optimizer.scheduler: expected a table with a name"),
        ("[optimizer]\nlr = 1.0\nscheduler = 'StepLR'", "optimizer.scheduler: expected a table with a name"),
        ("[optimizer]\nlr = 1.0\nscheduler = { name = 'StepLR', size = 1 }", "does not take"),
        ("[optimizer]\nname = 'SparseAdam'", "sparse gradients only.*choose another optimiser"),
        ("[optimizer]\nscheduler = { name = 'ChainedScheduler' }", "choose another scheduler"),
        ("[optimizer]\nscheduler = { name = '_LRScheduler' }", "torch has no scheduler '_LRScheduler'"),
        ("[method]\ncompressor = { name = 'nowhere:Map' }", "cannot import the compressor 'nowhere:Map'"),
        ("[method]\ncompressor = { name = ':Map' }", "cannot import the compressor ':Map'"),
        ("[method]\ncompressor = { name = 'collections:Counter' }", "a class under @register"),
        (
            "[model]\nname = 'torch.nn:Linear'\nwidth = 8\noptions = { in_features = 16, out_features = 5 }",
            "model.width: expected 5, as 'torch.nn:Linear' of .* returns for a row, got 8",
        ),
        ("[data]\nname = 'npzz'", r"no data set 'npzz'\. Did you mean 'npz'"),
        ("[data]\nname = 'table'\npath = 'x.csv'", "there is no party: add a"),
        (
            "[data]\nname = 'tabel'\n[[party]]\nname = 'bank'\ndata = { path = 'bank.csv', id = 'id' }",
            "data.name: expected 'table', .* got 'tabel'",
        ),
        ("loss = 'cross_entropi'", r"Did you mean 'cross_entropy'\?"),
        ("label_holder = 'bank'", r"label_holder: expected one of the parties \[.*\], got 'bank'"),
        ("[[party]]\nname = 'top-lef'", r"Did you mean 'top-left'\?"),
        ("[model]\nname = 'resnet'", "no model 'resnet'"),
        ("[model]\nname = 'nowhere:net'", "cannot create the model 'nowhere:net'"),
        (
            "[model]\nname = 'collections:Counter'",
            "expected 'collections:Counter' to return a torch.nn.Module, got a Counter",
        ),
        ("[model]\nlast = 'reluu'", r"Did you mean 'relu'\?"),
        ("[[party]]\nname = 'top-left'\nmodel = { width = 3 }", "does not go with representations of different widths"),
        ("[data]\nvalidation = 0.6\ntest = 0.6", "leave no rows"),
        ("[data]\nname = 'npz'", "data.path is missing"),
        ("[data]\nname = 'npz'\npath = 'missing.npz'", "cannot read"),
    ],
)
def test_mistakes_that_show_when_the_run_is_built(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)

    def build() -> None:
        config = load(path)
        make_federation(config, load_data(config, tmp_path))

    with pytest.raises(ConfigError, match=error):
        build()


def test_your_own_model_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("import torch\ndef net(size): return torch.nn.Linear(16, size)\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text("epochs = 1\n[model]\nname = 'mine:net'\noptions = { size = 5 }\n")
    config = load(path)
    federation = make_federation(config, load_data(config, tmp_path))
    assert federation.parties["top-left"].up.width == (5,)


def test_all_rows_for_training() -> None:
    config = read(RunConfig, {"data": {"validation": 0.0, "test": 0.0}, "epochs": 1}, "run")
    federation = make_federation(config, load_data(config, Path()))
    (record,) = federation.train(1)
    assert record.validation == record.test == {}


def test_your_own_arrays(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x: dict[str, Any] = {name: draw.standard_normal((80, n)) for name, n in (("bank", 3), ("telco", 5))}
    target = x["bank"][:, 0] + x["telco"][:, 1]
    np.savez(tmp_path / "table.npz", **x, y=target)
    path = tmp_path / "run.toml"
    path.write_text("loss = 'mse'\n[data]\nname = 'npz'\npath = 'table.npz'\ntest = 0.2\n[optimizer]\nlr = 0.1\n")
    config = load(path)
    federation = make_federation(config, load_data(config, tmp_path))
    assert list(federation.parties) == ["bank", "telco"]
    *_, last = federation.train(60)
    assert last.test["r2"] > 0.2
    np.savez(tmp_path / "table.npz", **x, y=(target > 0).astype(int))
    path.write_text("[data]\nname = 'npz'\npath = 'table.npz'\nvalidation = 0.0\n")
    config = load(path)
    data = load_data(config, tmp_path)
    assert data.classes == 2
    assert data.validation is None
    np.savez(tmp_path / "table.npz", **x)
    with pytest.raises(ConfigError, match="expected 'y' and one array per party"):
        load_data(config, tmp_path)
    np.savez(tmp_path / "table.npz", bank=x["bank"][:70], telco=x["telco"], y=target)
    with pytest.raises(ConfigError, match=r"expected 80 rows of 'bank' in .*, got 70"):
        load_data(config, tmp_path)
    for y in (target[:, None], target[0], target.astype(str)):
        np.savez(tmp_path / "table.npz", bank=x["bank"], y=y)
        with pytest.raises(ConfigError, match="expected one number per row as 'y'"):
            load_data(config, tmp_path)
    np.save(tmp_path / "table.npy", target)
    (tmp_path / "table.npy").rename(tmp_path / "table.npz")
    with pytest.raises(ConfigError, match="cannot read"):
        load_data(config, tmp_path)
    np.savez(tmp_path / "table.npz", bank=x["bank"][:, 0], y=target)
    with pytest.raises(ConfigError, match="expected rows of numbers as "):
        load_data(config, tmp_path)


def test_a_subset_of_your_own_arrays(tmp_path: Path) -> None:
    x = np.arange(40.0)[:, None]
    np.savez(tmp_path / "table.npz", bank=x, y=np.arange(40) % 2, ids=np.arange(40))
    np.savez(tmp_path / "own.npz", x=x, ids=np.arange(40))
    table = {"name": "npz", "path": "table.npz", "subset": 7}
    whole = load_data(read(RunConfig, {"data": table | {"subset": 0}}, "run"), tmp_path)
    for party in ([], [{"name": "bank", "data": {"path": "own.npz"}}]):
        part = load_data(read(RunConfig, {"data": table, "party": party}, "run"), tmp_path)
        assert len(part.train.labels) == len(part.ids["train"]) == 7
        assert [str(int(i)) for i in part.train.features[0][:][:, 0]] == part.ids["train"]
        assert part.ids["test"] == whole.ids["test"]


def test_an_optimiser_without_a_rate() -> None:
    assert make_optimizer({"momentum": 0.9}) == Optimizer("SGD", {"momentum": 0.9, "lr": RunConfig().optimizer["lr"]})
    assert make_optimizer({"name": "Adam"}) == Optimizer("Adam", {})  # torch's own


def test_names_that_are_refused_are_not_suggested() -> None:
    with pytest.raises(ConfigError) as caught:
        make_optimizer({"name": "SparseAdm"})
    assert not {"LBFGS", "SparseAdam"} & set(re.findall(r"\w+", str(caught.value).partition("Known")[2]))
    with pytest.raises(ConfigError) as caught:
        make_optimizer({"scheduler": {"name": "LRSchedule"}})
    known = set(re.findall(r"\w+", str(caught.value).partition("Known")[2]))
    assert "StepLR" in known
    for name in known - {"LambdaLR", "MultiplicativeLR", "SequentialLR"}:  # functions, or schedulers
        Optimizer("SGD", {"lr": 1.0}, name)
    assert not {"_LRScheduler", "LRScheduler", "ChainedScheduler"} & known


def test_your_own_compressor_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "adding-a-compressor.md").read_text(encoding="utf-8")
    source = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "own_map.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text("[method]\ncompressor = { name = 'own_map:EveryOther' }\n")
    config = load(path)
    try:
        federation = make_federation(config, load_data(config, tmp_path))
        up = federation.parties["top-left"].up.compressor
        assert (up.name, up.code) == ("every_other", 200)
        assert [record.epoch for record in federation.train(1)] == [1]
    finally:
        REGISTRY.pop("every_other", None)
        base._BY_CODE.pop(200, None)


def test_small_readers() -> None:
    assert compressor_from({}) is None
    assert make_optimizer({"lr": 0.5}) == Optimizer("SGD", {"lr": 0.5})
    assert read(Ramp, {"start": 1, "stop": 2, "steps": 3}, "ramp").at(3) == 2
