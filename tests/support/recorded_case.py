"""A small run whose every byte is known: what its messages and frames were is kept in recorded_bytes.json.

Sums are of two rows only, so that no processor's order of summation can change a bit.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Settings = dict[str, Any]

TOPK: Settings = {"name": "topk", "ratio": 0.3}
QSGD: Settings = {"name": "qsgd", "bits": 2}
COMPRESSORS: dict[str, Settings] = {
    "identity": {},
    "topk": {"ratio": 0.3},
    "randk": {"ratio": 0.5},
    "qsgd": {"bits": 2},
    "sign": {},
    "cast": {},
    "topk_qsgd": {"ratio": 0.5},
    "uniform": {"levels": 2},
    "natural": {},
    "low_rank": {"rank": 1},
    "columns": {"bits": 2},
    "random_topk": {"ratio": 0.5, "others": 0.3},
    "product": {"part": 2, "codes": 1},
}
SHARED: Settings = {"labels": "shared"}


def runs() -> dict[str, Settings]:
    """Settings that change what is sent, by name."""
    found: dict[str, Settings] = {"svfl": {"method": {"name": "svfl"}}}
    for name, knobs in COMPRESSORS.items():
        compressor = {"name": name, **knobs}
        found[f"cvfl-{name}"] = {"method": {"name": "cvfl", "compressor": compressor}}
        found[f"efvfl-{name}"] = {"method": {"compressor": compressor, "down": compressor}}
        found[f"efvfl-{name}-shared"] = {"method": {"compressor": compressor}, "agreement": SHARED}
    for downlink in ("relay", "aggregate"):
        for fusion in ("send", "replicate", "compress"):
            for reports, steps in (("batch", 2), ("all", 1)):
                agreement = SHARED | {"downlink": downlink, "fusion": fusion, "reports": reports}
                method = {"compressor": TOPK} | ({"fusion": QSGD} if fusion == "compress" else {})
                found[f"{downlink}-{fusion}-{reports}"] = {
                    "agreement": agreement | {"local_steps": steps, "digest_every": 3},
                    "method": method,
                }
    found["exact-start"] = {"method": {"compressor": TOPK, "start": "exact"}}
    found["exact-start-independent"] = found["exact-start"] | {"batch_order": "independent"}
    found["pipeline"] = {"agreement": {"pipeline": True}, "method": {"compressor": QSGD}}
    found["pipeline-shared"] = {"agreement": SHARED | {"pipeline": True}, "method": {"compressor": QSGD}}
    found["window"] = {"agreement": {"pipeline": 3}, "method": {"compressor": {"name": "uniform", "scale": "row"}}}
    found["cached"] = {"agreement": {"cached": {"steps": 2, "batches": 3}}, "method": {"compressor": TOPK}}
    found["celu"] = {"method": {"name": "celu", "options": {"updates": 3, "batches": 3}}}
    found["fedbcd-shared"] = {"method": {"name": "fedbcd", "options": {"updates": 2}}, "agreement": SHARED}
    found["sent-only"] = {"method": {"compressor": TOPK, "cotangents": "sent"}}
    found["sent-only-down"] = {"method": {"compressor": TOPK, "down": QSGD, "cotangents": "sent"}}
    found["first"] = {"method": {"compressor": TOPK, "first": {"name": "uniform", "levels": 3}}}
    found["bfloat16"] = {"agreement": {"memory_dtype": "bfloat16"}, "method": {"compressor": TOPK}}
    found["label-holder"] = {"label_holder": "b", "method": {"compressor": TOPK}}
    found["label-holder-shared"] = {"label_holder": "b", "agreement": SHARED, "method": {"compressor": TOPK}}
    found["concat"] = {
        "fusion": {"combine": "concat", "name": "recorded_case:Pick", "options": {"width": 12}},
        "method": {"compressor": TOPK},
    }
    found["protect"] = {"protect": {"clip": 0.5}, "method": {"compressor": QSGD, "down": QSGD}}
    found["momentum"] = {"optimizer": {"name": "SGD", "lr": 0.5, "momentum": 0.5}, "method": {"compressor": QSGD}}
    plateau = {"name": "ReduceLROnPlateau", "factor": 0.5, "patience": 0}
    found["patience"] = {
        "epochs": 6,
        "patience": 2,
        "optimizer": {"name": "SGD", "lr": 0.5, "scheduler": plateau},
        "method": {"compressor": TOPK},
    }
    return found


def settings(changes: Settings) -> Settings:
    """A run file with some settings changed."""
    base: Settings = {
        "epochs": 2,
        "batch_size": 2,
        "loss": "mse",
        "observe_gradient": False,
        "data": {"name": "npz", "path": "recorded.npz", "validation": 0.2, "test": 0.0},
        "model": {"name": "recorded_case:Scale", "options": {"width": 4}, "width": 4},
        "fusion": {"name": "recorded_case:Pick", "options": {"width": 4}},
        "optimizer": {"name": "SGD", "lr": 0.5},
        "party": [{"name": name} for name in "abc"],
    }
    return base | changes


def write_rows(path: Path) -> None:
    """Ten rows of three parties, made without a generator."""
    cells = np.arange(10 * 4)
    parties: dict[str, Any] = {
        name: ((cells * (7 + 2 * k) % 31) / 16 - 1).reshape(10, 4) for k, name in enumerate("abc")
    }
    np.savez(path, y=((np.arange(10) * 3 % 7) / 4 - 1).astype("f4"), **parties)


class Scale(nn.Module):
    """Each column times a weight of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 - torch.arange(width) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Pick(Scale):
    """The first two of the scaled columns, added up."""

    def forward(self, x: Tensor) -> Tensor:
        scaled = super().forward(x)
        return scaled[:, :1] + scaled[:, 1:2]
