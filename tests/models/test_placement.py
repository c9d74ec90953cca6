"""Where a local model computes, and in which precision; there is no other device here than the CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from problems import everything, same

from efvfl import Federation
from efvfl.cli.main import main
from efvfl.config import run_file as configs
from efvfl.config.run_file import ModelConfig, PartyConfig, RunConfig
from efvfl.data import digits
from efvfl.errors import ConfigError
from efvfl.models.mlp import mlp
from efvfl.models.placement import find, place
from efvfl.network import handshake
from efvfl.runs.build import local_model, make_federation
from efvfl.training.measure import represent

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
