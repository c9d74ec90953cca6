"""Anyone may be killed at any moment, the server too: the end is the same, bit for bit. At length: `make chaos`."""

from pathlib import Path

import pytest
import torch
from chaos import CASES, chaos, differences


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_eight_kills_change_nothing(case: str, tmp_path: Path) -> None:
    assert chaos(tmp_path, [case], kills=8, epochs=24) >= 8


def test_a_difference_would_be_found() -> None:
    a = {"server": {"x": torch.zeros(3), "losses": [1.0, 2.0]}, "records": [{"epoch": 1}]}
    assert not list(differences(a, {"server": {"x": torch.zeros(3), "losses": [1.0, 2.0]}, "records": [{"epoch": 1}]}))
    b = {"server": {"x": torch.tensor([0.0, 0, 1]), "losses": [1.0, 2.5]}, "records": []}
    assert sorted(differences(a, b)) == ["/records", "/server/losses/1", "/server/x"]
