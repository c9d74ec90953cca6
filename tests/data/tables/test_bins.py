"""Bins of numbers: cut at quantiles of the training rows, kept in the encoder, and applied by the model."""

import json

import numpy as np
import polars
import pytest
import torch
from numpy.typing import NDArray

from efvfl.data.tables.bins import MOST_BINS, edges_of, valid
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.errors import ConfigError, DataError
from efvfl.models.piecewise import PiecewiseLinear


def by_hand(values: NDArray[np.float64], edges: tuple[float, ...]) -> NDArray[np.float64]:
    """The encoding as the paper writes it, entry by entry: 1 for bins below, the fraction inside, 0 above."""
    out = np.zeros((len(values), len(edges) - 1))
    for i, value in enumerate(values):
        for t in range(len(edges) - 1):
            if value >= edges[t + 1]:
                out[i, t] = 1
            elif value > edges[t]:
                out[i, t] = (value - edges[t]) / (edges[t + 1] - edges[t])
    return out


def layer_of(encoder: Encoder) -> PiecewiseLinear:
    return PiecewiseLinear([edges for edges in encoder.layout.edges if edges])


def test_shares_are_those_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    frame = polars.DataFrame({"a": rng.lognormal(size=500), "b": rng.normal(size=500) * 1e4 + 7e5})
    encoder = Encoder.fit(frame[:400], TableSettings())
    found = layer_of(encoder).shares(torch.from_numpy(encoder.transform(frame)))
    for i, column in enumerate(encoder.columns):
        edges = np.unique(np.quantile(frame[:400, i].to_numpy(), np.linspace(0, 1, MOST_BINS + 1), method="nearest"))
        expected = by_hand(frame[:, i].to_numpy(), tuple(edges))
        np.testing.assert_allclose(found[:, i].numpy(), expected, atol=2e-4)
        assert column.scaled_edges[0] == encoder.layout.edges[i]
    assert float(found.min()) == 0
    assert float(found.max()) == 1


def test_a_layer_of_its_own_for_each_column() -> None:
    layer = PiecewiseLinear([(0.0, 1.0, 3.0), (0.0, 1.0)], width=2)
    x = torch.tensor([[2.0, 0.25]])
    first = torch.tensor([1.0, 0.5]) @ layer.weight[0] + layer.bias[0]
    second = torch.tensor([0.25]) @ layer.weight[1, :1] + layer.bias[1]
    torch.testing.assert_close(layer(x), torch.cat([first, second]).unsqueeze(0))


def test_equal_and_frequent_values_make_fewer_bins() -> None:
    assert edges_of(np.full(50, 3.0)) == ()
    assert edges_of(np.array([0.0] * 95 + [1.0, 2.0, 3.0, 4.0, 5.0])) == (0.0, 5.0)
    assert edges_of(np.array([0.0, 1.0] * 50)) == (0.0, 1.0)
    assert edges_of(np.arange(100.0), 0) == ()
    frame = polars.DataFrame({"same": [3.0] * 9, "yes": [True, False, True] * 3, "x": [*map(float, range(9))]})
    encoder = Encoder.fit(frame, TableSettings())
    assert [len(edges) for edges in encoder.layout.edges] == [0, 0, 9]
    assert [len(e) for e in Encoder.fit(frame, TableSettings(bins=2)).layout.edges] == [0, 0, 3]
    assert not any(Encoder.fit(frame, TableSettings(bins=0)).layout.edges)


def test_what_is_missing_takes_no_part_in_the_bins_and_is_the_median_in_them() -> None:
    frame = polars.DataFrame({"x": [1.0, 2.0, None, 3.0, float("inf"), 4.0, 5.0], "day": [0] * 7}).with_columns(
        day=polars.Series(np.datetime64("2024-01-01") + np.arange(7))
    )
    encoder = Encoder.fit(frame, TableSettings())
    assert [len(edges) for edges in encoder.layout.edges] == [5, 0, 7, 0, 0, 0, 0]  # the mark, sines and cosines: none
    x = torch.from_numpy(encoder.transform(frame))
    shares = layer_of(encoder).shares(x[:, [0, 2]])[:, 0]
    np.testing.assert_allclose(shares[2, :4].numpy(), [1, 1, 0, 0], atol=1e-6)
    assert torch.equal(shares[2], shares[4])


def test_edges_that_float32_cannot_tell_apart_are_one() -> None:
    layer = PiecewiseLinear([(0.0, 1e-30, 1.0), (5.0, 5.0 + 1e-9)])
    found = layer.shares(torch.tensor([[0.5, 5.0], [0.0, 9.0]]))
    assert found.tolist() == [[[0.5], [0.0]], [[0.0], [0.0]]]


def test_bins_are_kept_in_the_encoder() -> None:
    frame = polars.DataFrame({"x": np.random.default_rng(0).normal(size=99)})
    encoder = Encoder.fit(frame, TableSettings())
    again = Encoder.from_json(encoder.to_json())
    assert again == encoder
    assert again.layout.edges == encoder.layout.edges
    old = json.loads(encoder.to_json()) | {"version": 3}
    with pytest.raises(DataError, match="not an encoder of this version of efvfl: fit it again"):
        Encoder.from_json(json.dumps(old))


@pytest.mark.parametrize("edges", [(1.0,), (2.0, 1.0), (1.0, 1.0), (0.0, float("inf"))])
def test_edges_that_are_none_are_refused(edges: tuple[float, ...]) -> None:
    assert not valid(edges)
    encoder = Encoder.fit(polars.DataFrame({"x": [1.0, 2.0]}), TableSettings())
    table = json.loads(encoder.to_json())
    table["columns"][0]["edges"] = list(edges)
    with pytest.raises(DataError):
        Encoder.from_json(json.dumps(table))


def test_a_number_of_bins_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.bins: expected at most 256, got 1,?000"):
        TableSettings(bins=1000)
