"""scikit-learn's handwritten digits, which come with the package: 1,797 images of 8 x 8, one quadrant for each of 4."""

from __future__ import annotations

from typing import Any

import torch

from efvfl.data.base import Dataset, cut

NAMES = ["top-left", "top-right", "bottom-left", "bottom-right"]


def load_digits() -> Any:
    """Return them as they come; the library is loaded here, since it takes longer than all else and most do without."""
    from sklearn.datasets import load_digits as load

    return load()


def digits(seed: int = 0, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """Return the digits, cut into quadrants of 16 pixels between 0 and 1."""
    raw = load_digits()
    images = torch.tensor(raw.images / 16, dtype=torch.float32)
    halves = (slice(0, 4), slice(4, 8))
    quadrants = [images[:, rows, columns].reshape(len(images), -1) for rows in halves for columns in halves]
    train, valid, held = cut(NAMES, quadrants, torch.tensor(raw.target), (validation, test), seed)
    return Dataset(NAMES, train, valid, held, classes=10)
