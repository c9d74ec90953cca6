"""Handwritten digits that are part of the package: 1,797 images of 8 x 8; each of four parties has a quadrant.

They are the test set of the UCI Optical Recognition of Handwritten Digits, as in scikit-learn: see NOTICE.md.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
from numpy.typing import NDArray

from efvfl.data.base import Dataset, cut

NAMES = ["top-left", "top-right", "bottom-left", "bottom-right"]


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images, shape (1797, 8, 8), with values from 0 to 16, and the digits they show."""
    with (resources.files("efvfl") / "data" / "digits.npz").open("rb") as file, np.load(file) as arrays:
        return arrays["images"], arrays["labels"]


def digits(seed: int = 0, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """Return the digits, split into quadrants of 16 pixels between 0 and 1.

    >>> digits().train.features[0].shape
    torch.Size([1259, 16])
    """
    values, labels = load_digits()
    images = torch.tensor(values / 16, dtype=torch.float32)
    halves = (slice(0, 4), slice(4, 8))
    quadrants = [images[:, rows, columns].reshape(len(images), -1) for rows in halves for columns in halves]
    targets = torch.tensor(labels, dtype=torch.int64)
    train, valid, test_split = cut(NAMES, quadrants, targets, (validation, test), seed)
    return Dataset(NAMES, train, valid, test_split, classes=10)
