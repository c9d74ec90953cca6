"""A fusion model of one's own in a run file: attention over parties is a head of representations side by side."""

import importlib
import sys
from pathlib import Path

import pytest

from efvfl import train

SOURCE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, parties, width, classes):
        super().__init__()
        self.parties, self.width = parties, width
        self.attention = nn.MultiheadAttention(width, num_heads=2, batch_first=True)
        self.last = nn.Linear(width, classes)

    def forward(self, side_by_side):
        parts = side_by_side.reshape(-1, self.parties, self.width)
        attended, _ = self.attention(parts, parts, parts, need_weights=False)
        return self.last((parts + attended).mean(1))
"""
FILE = """
epochs = 2
batch_size = 30
data = { subset = 60 }
model = { width = 4 }
agreement = { labels = "LABELS" }
optimizer = { lr = 0.1 }

[fusion]
combine = "concat"
name = "fusion_of_mine:Attention"
options = { parties = 4, width = 4, classes = 10 }
"""


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_attention_over_parties_from_a_file(labels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fusion_of_mine", raising=False)
    importlib.invalidate_caches()
    (tmp_path / "fusion_of_mine.py").write_text(SOURCE)
    (tmp_path / "run.toml").write_text(FILE.replace("LABELS", labels))
    records = train(tmp_path / "run.toml", tmp_path / "out")
    assert records[-1].train["loss"] < records[0].train["loss"]
