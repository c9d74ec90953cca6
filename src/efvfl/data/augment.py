"""Images split into quadrants, one for each of four parties, with random crops and flips for training.

A crop or flip of the whole image moves pixels between parties, so augmentation works in one process only. Every party
computes its own quadrant: the crop of a row is a pure function of key, step and row, so all parties use the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.core.batches import ALL, Rows, Source
from efvfl.errors import DataError
from efvfl.util.jit import kernel
from efvfl.util.rng import at_step, uniform

QUADRANTS = 4  # top-left, top-right, bottom-left, bottom-right


def normaliser(mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (value / 255 - mean) / std for every channel and byte value, float32, shape (channels, 256)."""
    values = torch.arange(256, dtype=torch.float32).div_(255)
    return values.sub(torch.tensor(mean).unsqueeze(1)).div_(torch.tensor(std).unsqueeze(1))


def quadrants(images: Tensor, table: Tensor) -> list[Tensor]:
    """Return the four normalised quadrants, not augmented, each of shape (rows, channels, height / 2, width / 2)."""
    return [QuadrantCrops(images, table, place, padding=0, flip=False).batch(ALL, 0) for place in range(QUADRANTS)]


def crops(images: Tensor, table: Tensor, key: int) -> list[Source]:
    """Return the four parties' training sources: random crops of images padded by 4, flipped half of the time."""
    return [QuadrantCrops(images, table, place, key) for place in range(QUADRANTS)]


@dataclass(frozen=True)
class QuadrantCrops:
    """One party's quadrant of randomly cropped and flipped images, normalised when a batch is made."""

    images: Tensor  # uint8 (rows, channels, height, width), shared by all parties
    table: Tensor  # what `normaliser` returns
    place: int  # the quadrant, 0 to 3 in reading order
    key: int = 0  # the same for all parties
    padding: int = 4  # zeros around the raw image; the crop is shifted by up to this many pixels each way
    flip: bool = True

    def __post_init__(self) -> None:
        """Check that the images can be split into quadrants."""
        shape = tuple(self.images.shape)
        if self.images.dtype != torch.uint8 or len(shape) != 4 or shape[2] % 2 or shape[3] % 2:
            raise DataError(
                "expected uint8 images of shape (rows, channels, height, width) with even height and width, got "
                f"{self.images.dtype} of shape {shape}."
            )
        if tuple(self.table.shape) != (shape[1], 256):
            raise DataError(f"expected mean and std of {shape[1]} channels, as the images have, got {len(self.table)}.")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def batch(self, rows: Rows, step: int) -> Tensor:
        """Return the quadrants of these rows at this step, float32, shape (rows, channels, height / 2, width / 2)."""
        count, channels, height, width = self.images.shape
        wanted = np.arange(count)[rows] if isinstance(rows, slice) else rows.numpy().astype(np.int64, copy=False)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < count:
            raise IndexError(f"expected rows from 0 to {count - 1:,}, got {wanted.min()} to {wanted.max()}.")
        out = torch.empty(len(wanted), channels, height // 2, width // 2)
        key = np.uint64(at_step(self.key, step))
        padding, flip = (self.padding, self.flip) if step >= 0 else (0, False)  # to be looked at: as they are
        _gather(self.images.numpy(), self.table.numpy(), wanted, key, padding, flip, self.place, out.numpy())
        return out


@kernel
def _gather(
    images: NDArray[np.uint8],
    table: NDArray[np.float32],
    rows: NDArray[np.int64],
    key: np.uint64,
    padding: int,
    flip: bool,
    place: int,
    out: NDArray[np.float32],
) -> None:
    """Crop, flip, split and normalise by looking up each output pixel, so the cost is that of the output."""
    height, width = images.shape[2], images.shape[3]
    top, left = place // 2 * (height // 2), place % 2 * (width // 2)
    shifts = 2 * padding + 1
    for i in range(rows.size):
        row = rows[i]
        draw = np.uint64(3) * np.uint64(row)
        first = top + int(uniform(key, draw) * shifts) - padding
        across = int(uniform(key, draw + np.uint64(1)) * shifts) - padding
        if flip and uniform(key, draw + np.uint64(2)) < 0.5:
            start, turn = width - 1 - left + across, -1
        else:
            start, turn = left + across, 1
        for channel in range(images.shape[1]):
            outside = table[channel, 0]  # padding is applied before normalising: black, not grey
            for y in range(out.shape[2]):
                if first + y < 0 or first + y >= height:
                    out[i, channel, y, :] = outside
                    continue
                for x in range(out.shape[3]):
                    column = start + turn * x
                    if column < 0 or column >= width:
                        out[i, channel, y, x] = outside
                    else:
                        out[i, channel, y, x] = table[channel, images[row, channel, first + y, column]]
