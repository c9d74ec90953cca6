"""Where a local model computes, and in which precision; there is no other device here than the CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from problems import classes, columns, everything, head, local_models, same
from torch import Tensor, nn

from efvfl import Federation, Setup, Training, federate
from efvfl.cli.main import main
from efvfl.config import run_file as configs
from efvfl.config.run_file import ModelConfig, PartyConfig, RunConfig
from efvfl.data import digits
from efvfl.errors import ConfigError
from efvfl.models.mlp import mlp
from efvfl.network import handshake
from efvfl.runs.build import local_model, make_federation
from efvfl.training import placement
from efvfl.training.measure import represent
from efvfl.training.placement import find, place

LOWER = ModelConfig(hidden=(12,), last="identity", precision="bfloat16")


def trained(model: ModelConfig, epochs: int = 3) -> Federation:
    config = RunConfig(epochs=epochs, batch_size=200, model=model, optimizer={"name": "SGD", "lr": 0.5})
    made = make_federation(config, digits())
    losses = [record.surrogate_loss for record in made.train(epochs, gradient=False)]
    assert losses[-1] < losses[0]
    return made


def test_training_in_bfloat16_is_training_and_repeats_itself() -> None:
    first, again, plain = trained(LOWER), trained(LOWER), trained(replace(LOWER, precision="float32"))
    assert same(everything(first), everything(again))
    assert all(tensor.dtype == torch.float32 for tensor in everything(first))
    lower, exact = (run.record(gradient=False).validation["accuracy"] for run in (first, plain))
    assert abs(lower - exact) < 0.05
    assert not same(everything(first), everything(plain))


def test_only_the_local_model_computes_in_bfloat16() -> None:
    """What it returns has gone through bfloat16 and is float32; parameters and the fusion model's output have not."""
    made = trained(LOWER, epochs=2)
    h = represent(made.models[0], made.splits["test"].features[0])
    assert h.dtype == torch.float32
    assert torch.equal(h, h.bfloat16().float())
    for values in (made.predict(made.splits["test"].features), next(made.models[0].parameters()).detach()):
        assert not torch.equal(values, values.bfloat16().float())


def test_the_choice_changes_no_name_in_a_checkpoint() -> None:
    row = torch.zeros(16)
    plain, lower = (
        local_model(RunConfig(model=replace(LOWER, precision=p)), "a", row) for p in ("float32", "bfloat16")
    )
    assert list(plain.state_dict()) == list(lower.state_dict())
    lower.load_state_dict(plain.state_dict())


def test_the_default_leaves_a_model_as_it_is() -> None:
    model = mlp(4, 2)
    assert place(model) is model
    assert "forward" not in vars(model)


def test_the_choice_is_not_shared_with_others() -> None:
    names = ["a", "b"]
    config = RunConfig(model=ModelConfig(), party=(PartyConfig("a", ModelConfig(hidden=(3,))), PartyConfig("b")))
    moved = configs.on_device(config, "cuda")
    assert [p.model and p.model.device for p in moved.party] == ["cuda", None]
    assert moved.model.device == "cuda"
    lower = replace(moved, model=replace(moved.model, precision="bfloat16"))
    assert handshake.shared_part(lower, names) == handshake.shared_part(config, names)


@pytest.mark.parametrize(("device", "module"), [("cuda", torch.cuda), ("mps", torch.backends.mps)])
def test_a_device_that_is_not_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    module: object,
) -> None:
    monkeypatch.setattr(module, "is_available", lambda: False)
    file = tmp_path / "run.toml"
    file.write_text("epochs = 1\n")
    for words in (
        ("run", str(file), "--out", str(tmp_path / "out")),
        ("join", str(file), "--party", "top-left", "--insecure", "--dir", str(tmp_path / "party")),
    ):
        assert main([*words, "--device", device]) == 2
        assert f"device = '{device}' is not available to torch on this machine" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="Known: cpu, cuda, mps"):
        configs.read(RunConfig, {"model": {"device": "tpu"}}, "file")


def test_a_worker_has_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = []
    for number in ("0", "1", "2"):
        monkeypatch.setenv("LOCAL_RANK", number)
        found.append(find("cuda").index)
    assert found == [0, 1, 0]


def on(device: object) -> Federation:
    x = columns()
    setup = Setup(device=device)  # type: ignore[arg-type]
    return federate(x, classes(x), local_models(), head(), training=Training(batch_size=16), setup=setup)


def test_a_setup_has_a_device_for_all_or_by_party(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device is here: one is made up that computes as the CPU does, and every place that asks for it is counted."""
    asked: list[str] = []

    def found(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(placement, "find", found)
    plain, everywhere, one = on("cpu"), on("cuda"), on({"party2": "mps"})
    assert asked == ["cuda"] * 3 + ["mps"]
    assert ["forward" in vars(model) for model in one.models] == [False, True, False]
    expected = [record.train for record in plain.fit(2)]
    assert [record.train for record in everywhere.fit(2)] == [record.train for record in one.fit(2)] == expected
    assert same(everything(plain), everything(everywhere))


def test_a_model_on_a_device_computes_there_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A meta tensor has no values and cannot come back: so the way there is all that can be tried without a device."""
    monkeypatch.setattr(placement, "find", lambda name: torch.device("meta"))
    monkeypatch.setattr(torch, "meta", torch.cpu, raising=False)
    monkeypatch.setattr(torch.cpu, "manual_seed", lambda seed: None, raising=False)
    seen: list[tuple[str, str]] = []

    def look(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((given[0].device.type, output.device.type))

    inner = nn.Linear(3, 2)
    inner.register_forward_hook(look)
    model = place(nn.Sequential(inner, nn.ReLU()), "cuda")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    x = torch.ones(4, 3)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        model(x)
    assert seen == [("meta", "meta")]
    assert x.device.type == "cpu"


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("gpu", "device: got 'gpu'. Did you mean 'cpu'"),
        ({"bank": "cuda"}, "device has 'bank', which is not a party"),
        (3, "device: expected 'cuda' or {'party1': 'cuda'}, got 3"),
        ("mps", "device = 'mps' is not available to torch on this machine"),
    ],
)
def test_a_device_that_nobody_has_is_refused(device: object, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError) as refused:
        on(device)
    assert error in str(refused.value)


def test_a_precision_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision: got 'float16'"):
        place(nn.Linear(1, 1), precision="float16")
