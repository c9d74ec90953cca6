"""Local models for images."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from efvfl.config.run_file import ModelConfig, RunConfig
from efvfl.core.batches import Rows
from efvfl.data import Dataset, digits
from efvfl.errors import ConfigError
from efvfl.experiments import experiment_file
from efvfl.models.vision import mvcnn, resnet18
from efvfl.runs.build import make_federation
from efvfl.training.measure import Split


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_resnet18_is_the_one_of_the_papers_runs() -> None:
    model = resnet18(3, 16)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len([c for c in convolutions if c.kernel_size == (3, 3)]) == 17  # and a linear layer make 18
    assert convolutions[0].stride == (1, 1)
    assert not any(isinstance(m, nn.MaxPool2d) for m in model.modules())
    assert sorted({c.out_channels for c in convolutions}) == [32, 64, 128, 256]
    # Twice the channels are the usual ResNet18: 11.17 million parameters before its last layer, on colour images.
    assert size(resnet18(3, 16, channels=64)) - size(nn.Linear(512, 16)) == 11_168_832
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 16)


def test_group_norm_does_not_mix_rows() -> None:
    model = resnet18(1, 4, channels=8, norm="group")
    x = torch.randn(3, 1, 8, 8)
    assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)
    with pytest.raises(ConfigError, match="expected norm 'batch', 'group' or 'none', got 'layer'"):
        resnet18(1, 4, norm="layer")  # type: ignore[arg-type]


def test_mvcnn_in_both_sizes() -> None:
    assert mvcnn((1, 32, 32), 16)(torch.zeros(2, 1, 32, 32)).shape == (2, 16)
    large = mvcnn((3, 224, 224), 16, "baseline")
    assert large(torch.zeros(1, 3, 224, 224)).shape == (1, 16)
    first = next(m for m in large.modules() if isinstance(m, nn.Conv2d))
    assert (first.out_channels, first.kernel_size, first.stride) == (64, (11, 11), (4, 4))
    with pytest.raises(ConfigError, match="too small for mvcnn's size 'small'"):
        mvcnn((1, 4, 4), 16)
    with pytest.raises(ConfigError, match="'baseline' or 'small'"):
        mvcnn((1, 32, 32), 16, "huge")  # type: ignore[arg-type]


def pictures() -> Dataset:
    """The digits' quadrants as images of one channel, every pixel four times."""
    data = digits()

    def shaped(split: Split | None) -> Split:
        assert split is not None
        images = [x[:200].reshape(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3) for x in split.features]
        return Split(images, split.labels[:200])

    return replace(data, train=shaped(data.train), validation=shaped(data.validation), test=shaped(data.test))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [ModelConfig("resnet18", options={"channels": 4}), ModelConfig("mvcnn", width=8, options={"channels": 4})],
    ids=lambda m: m.name,
)
def test_image_models_train_from_files(model: ModelConfig) -> None:
    config = RunConfig(epochs=2, batch_size=50, model=model, optimizer={"name": "Adam", "lr": 0.01})
    records = list(make_federation(config, pictures()).train(2, gradient=False))
    assert records[-1].surrogate_loss < records[0].surrogate_loss
    assert records[-1].gradient != records[-1].gradient  # not measured
    with pytest.raises(ConfigError, match="needs images"):
        make_federation(config, digits())


class Shifted:
    """Columns that depend on the step."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, rows: Rows, step: int) -> torch.Tensor:
        self.asked.append(step)
        return self.x[rows] + 0.01 * step


def test_parties_train_on_what_a_source_makes_and_records_use_the_plain_rows() -> None:
    data = digits()
    sources = [Shifted(x[:]) for x in data.train.features]
    config = RunConfig(epochs=1, batch_size=300)
    plain, shifted = make_federation(config, data), make_federation(config, replace(data, sources=list(sources)))
    losses = [[run.step() for _ in range(3)] for run in (plain, shifted)]
    assert losses[0][0] == losses[1][0]  # nothing is shifted at step 0
    assert losses[0][2] != losses[1][2]
    assert sources[0].asked == [0, 1, 2, 3]
    few = replace(data, sources=list(sources)).subset(100, seed=1)
    assert len(few.train.labels) == 100
    assert few.sources is not None
    rows = torch.tensor([3, 5])
    assert torch.equal(few.sources[2].batch(rows, 0), few.train.features[2][rows])
    with pytest.raises(ConfigError, match=r"expected a subset of 1 to .* training rows, got 5,000"):
        data.subset(5000, 0)


def test_every_experiment_builds_its_network() -> None:
    """On rows of the right shape, so that no data is needed."""
    shapes = {"modelnet10": (12, (1, 32, 32), 10), "cifar10": (4, (3, 16, 16), 10), "cifar100": (4, (3, 16, 16), 100)}
    for task, name in (
        ("modelnet10", "modelnet10"),
        ("modelnet10-full", "modelnet10"),
        ("cifar10", "cifar10"),
        ("cifar100", "cifar100"),
    ):
        parties, shape, classes = shapes[name]
        split = Split([torch.randn(4, *shape) for _ in range(parties)], torch.arange(4))
        data = Dataset([f"p{i}" for i in range(parties)], split, split, split, classes)
        config = replace(experiment_file.load(task).cells[-1].config, batch_size=0)
        federation = make_federation(config, data)
        assert federation.predict(split.features).shape == (4, classes)
