"""Several input tensors of one party, by name and by place: the same training as with them all in one table."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import classes, columns, federate_flat, head, local_models, same
from torch import Tensor, nn

from efvfl import Federation, TopK, efvfl
from efvfl.errors import ConfigError
from efvfl.training.several_inputs import InputLayout

ROOT = Path(__file__).parents[2]


class Joined(nn.Module):
    """The first party's model, with its columns in two tensors of other shapes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        found: Tensor = self.inner(torch.cat([left, right.reshape(len(right), -1)], dim=1))
        return found


def built(several: Any, **options: Any) -> Federation:
    x, models = columns(), local_models()
    first = several(x[0]) if several else x[0]
    if several:
        models[0] = Joined(models[0])
    given = {"features": [first, *x[1:]], "models": models, "labels": classes(x), "head": head(), "batch_size": 16}
    return federate_flat(method=efvfl(TopK(0.5)), **(given | options))


FORMS: dict[str, Any] = {
    "by name": lambda x: {"left": x[:, :2], "right": x[:, 2:, None]},
    "by name, in another order": lambda x: {"right": x[:, 2:, None], "left": x[:, :2]},
    "by place": lambda x: (x[:, :2], x[:, 2:, None]),
    "arrays": lambda x: (x[:, :2].numpy(), x[:, 2:, None].numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_training_is_that_of_one_table(form: str) -> None:
    make, x = FORMS[form], columns()
    several = built(make, test=([make(x[0][:9]), x[1][:9], x[2][:9]], classes(x)[:9]))
    plain = built(None, test=([v[:9] for v in x], classes(x)[:9]))
    assert [r.test for r in several.fit(3)] == [r.test for r in plain.fit(3)]
    assert same(list(several.models[0].parameters()), list(plain.models[0].parameters()))
    rows = [make(x[0][:4]), x[1][:4], x[2][:4]]
    assert torch.equal(several.predict(rows), plain.predict([v[:4] for v in x]))
    again = built(make)
    again.load_state_dict(several.state_dict())
    assert again.record().train == several.record().train
    with pytest.raises(ConfigError, match="several inputs of one"):
        several.column_values(split="test")


def test_every_dtype_comes_back_as_it_was() -> None:
    parts = [
        torch.tensor([[1 << 40, -1], [3, 4]]),
        torch.tensor([True, False]),
        torch.randn(2, 3, 2),
        torch.randn(2, 1, dtype=torch.float64),
    ]
    layout = InputLayout((), tuple(tuple(p.shape[1:]) for p in parts), tuple(p.dtype for p in parts))
    rows = layout.pack(parts)
    assert rows.dtype == torch.uint8
    for one in (rows, rows[1:], rows[[1, 0]][[1, 0]]):
        for found, part in zip(layout.unpack(one), parts, strict=True):
            assert torch.equal(found, part[-len(one) :])
            assert found.dtype == part.dtype


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (lambda x: {"left": x[:, :2]}, r"expected \['left', 'right'\], as in training, got \['left'\]"),
        (lambda x: {"left": x[:, :2], "right": x[:1, 2:, None]}, r"expected as many rows of each, got \[60, 1\]"),
        (lambda x: {"left": x[:, :1], "right": x[:, 2:, None]}, "the inputs of 'party1': expected InputLayout"),
        (lambda x: {"left": x[:, :2] / 0, "right": x[:, 2:, None]}, "input 'left' of 'party1' holds NaN or infinity"),
    ],
)
def test_other_inputs_than_those_of_training_are_refused(rows: Any, error: str) -> None:
    x = columns()
    federation = built(FORMS["by name"])
    with pytest.raises(ConfigError, match=error):
        federation.predict([rows(x[0]), x[1], x[2]])
    with pytest.raises(ConfigError, match="expected names of arguments"):
        built(lambda x: {1: x})


def test_whole_numbers_of_an_array_stay_whole() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 4).double()

        def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
            found: Tensor = (self.words(tokens) * there.unsqueeze(2)).sum(1)
            return found

    x, models = columns(), local_models()
    models[0] = Words()
    tokens = {"tokens": np.arange(120).reshape(60, 2) % 5, "there": np.ones((60, 2), dtype=bool)}
    federation = federate_flat(features=[tokens, *x[1:]], labels=classes(x), models=models, head=head())
    assert federation.fit(1)[0].train["loss"] > 0


def test_the_example_learns_from_tokens_a_series_and_columns() -> None:
    """It runs for fewer epochs here."""
    federation, rows, labels = runpy.run_path(str(ROOT / "examples" / "tokens_and_series.py"))["build"]()
    records = federation.fit(4)
    assert records[-1].train["loss"] < records[0].train["loss"]
    assert records[-1].test["accuracy"] == float((federation.predict(rows).argmax(dim=1) == labels).double().mean())
    assert records[-1].test["accuracy"] > 0.6
