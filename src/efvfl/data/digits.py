"""scikit-learn's handwritten digits, 1,797 images of 8 x 8; each of four parties has a quadrant."""

from __future__ import annotations

from typing import Any

import torch

from efvfl.data.base import Dataset, cut

NAMES = ["top-left", "top-right", "bottom-left", "bottom-right"]


def load_digits() -> Any:
    """Return the raw digits. scikit-learn is imported here because the import is slow and most runs do not need it."""
    from sklearn.datasets import load_digits as load

    return load()


def digits(seed: int = 0, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """Return the digits, split into quadrants of 16 pixels between 0 and 1.

    >>> digits().train.features[0].shape
    torch.Size([1259, 16])
    """
    raw = load_digits()
    images = torch.tensor(raw.images / 16, dtype=torch.float32)
    halves = (slice(0, 4), slice(4, 8))
    quadrants = [images[:, rows, columns].reshape(len(images), -1) for rows in halves for columns in halves]
    train, valid, test_split = cut(NAMES, quadrants, torch.tensor(raw.target), (validation, test), seed)
    return Dataset(NAMES, train, valid, test_split, classes=10)
