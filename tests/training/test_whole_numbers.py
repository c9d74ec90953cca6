"""Tokens, ids and codes: exact where the local model takes whole numbers, refused where a float would round them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from efvfl import Federation, TopK, Training, efvfl, federate
from efvfl.data import npz
from efvfl.errors import ConfigError

LARGE = (1 << 24) + 1  # which float32 does not have


class Buckets(nn.Module):
    """An embedding of ids by their remainder, which is another one where the id was rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(2, 3, mode="sum")

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(x % 2)
        return found


IDS = np.array([[LARGE + i, i] for i in range(8)])
Y = np.arange(8) % 2


def trained(features: object, model: nn.Module) -> Federation:
    x = {"bank": features, "telco": np.ones((8, 2))}
    models = {"bank": model, "telco": nn.Linear(2, 3).double()}
    held = {"bank": IDS[:3].tolist(), "telco": np.ones((3, 2))}
    model.double()
    made = federate(
        x,
        Y,
        models,
        nn.Linear(3, 2).double(),
        method=efvfl(TopK(0.5)),
        training=Training(batch_size=4),
        test=(held, Y[:3]),
    )
    made.fit(2)
    return made


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, torch.from_numpy])
def test_whole_numbers_reach_a_model_that_takes_them_as_they_are(form: object) -> None:
    torch.manual_seed(0)
    made = trained(form(IDS), Buckets())  # type: ignore[operator]
    x = made.splits["train"].features[0]
    assert x.dtype == torch.int64
    assert torch.equal(x[:], torch.from_numpy(IDS))
    assert made.splits["test"].features[0].dtype == torch.int64
    rows = {"bank": IDS[:2], "telco": np.ones((2, 2))}
    assert made.predict(rows).shape == (2, 2)
    with pytest.raises(ConfigError, match=r"new columns of 'bank': expected numbers that torch.int64 holds.*got 0.5"):
        made.predict({"bank": [[0.5, 1.0]], "telco": [[1.0, 1.0]]})


def test_other_models_get_floats_as_before() -> None:
    x = federate([[[1, 2], [3, 4]]], [0, 1], [nn.Linear(2, 3)], nn.Linear(3, 2)).splits["train"].features[0]
    assert x.dtype == torch.float32


def test_whole_numbers_that_a_float_would_round_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"columns of 'party1': .* got 16,777,217: use a model that takes whole"):
        federate([IDS], Y, [nn.Linear(2, 3)], nn.Linear(3, 2))
    with pytest.raises(ConfigError, match="expected numbers of up to 63 bits, got 18446744073709551615"):
        federate([np.full((8, 1), 2**64 - 1, np.uint64)], Y, [nn.Linear(1, 3)], nn.Linear(3, 2))


def test_arrays_of_a_run_file_are_not_rounded_either(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", bank=IDS, y=Y)
    with pytest.raises(ConfigError, match=r"array 'bank' in .* got 16,777,217"):
        npz(tmp_path / "rows.npz")
    np.savez(tmp_path / "rows.npz", bank=IDS % 1000, y=Y)
    assert npz(tmp_path / "rows.npz").train.features[0].dtype == torch.float32
