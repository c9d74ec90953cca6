"""ModelNet10 in 12 views: the official meshes are rendered once, and each of 12 parties has one view of every object.

The official archive has files like ModelNet10/chair/train/chair_0001.off. The views are stored in one .npz file:
`x_train` (rows, 12, 32, 32) and `y_train` of uint8, `empty_train` for meshes that show nothing, and the same for test.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from efvfl.data import store
from efvfl.data.base import Dataset, halves
from efvfl.data.mesh import normalise, read_off, render
from efvfl.errors import DataError
from efvfl.training.measure import Split

CLASSES = ("bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet")
OFFICIAL = (3991, 908)  # training and test meshes
VIEWS, SIZE = 12, 32
NAMES = [f"view-{view:02}" for view in range(1, VIEWS + 1)]

# Mean and standard deviation of all pixels, divided by 255, of the 3,984 nonempty training objects in the file
# views12_32px.npz (rendered from voxels). Constants, so that every rendering is scaled alike.
MEAN, STD = 0.18524, 0.30147

_MEMBER = re.compile(r"(?:[^/]+/)?(?P<kind>[^/]+)/(?P<part>train|test)/[^/.][^/]*\.off", re.IGNORECASE)
_BROKEN = (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
_FEW = 256  # up to this many meshes, starting processes takes longer than rendering


def render_archive(
    zip_path: Path,
    target: Path,
    progress: Callable[[int, int], None] | None = None,
    expect: tuple[int, int] | None = OFFICIAL,
    workers: int | None = None,
) -> None:
    """Render every mesh of the official archive and write the views to `target` atomically.

    `progress` is called with the number of finished meshes and the total. An archive whose numbers of training and test
    meshes differ from `expect` is an error; None accepts any. `workers` is the number of processes, by default one per
    core.
    """
    members = _members(zip_path)
    names = [name for _, name, _ in members]
    kinds = sorted({kind for kind, _, _ in members})
    parts = {part: np.array([one == part for _, _, one in members]) for part in ("train", "test")}
    counts = (int(parts["train"].sum()), int(parts["test"].sum()))
    if expect is not None and (counts != expect or (expect == OFFICIAL and tuple(kinds) != CLASSES)):
        raise DataError(
            f"expected {expect[0]:,} training and {expect[1]:,} test meshes in {zip_path}, got {counts[0]:,} and "
            f"{counts[1]:,} of {len(kinds)} classes: it is not the official ModelNet10.zip. Download it again."
        )
    views = np.empty((len(names), VIEWS, SIZE, SIZE), dtype=np.uint8)
    for done, pictures in enumerate(_rendered(zip_path, names, workers)):
        views[done] = pictures
        if progress is not None:
            progress(done + 1, len(names))
    labels = np.array([kinds.index(kind) for kind, _, _ in members], dtype=np.uint8)
    empty = views.reshape(len(views), -1).max(axis=1) == 0
    arrays: dict[str, Any] = {}
    for part, rows in parts.items():
        arrays |= {f"x_{part}": views[rows], f"y_{part}": labels[rows], f"empty_{part}": empty[rows]}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    store.write(target, buffer.getvalue())


def _members(path: Path) -> list[tuple[str, str, str]]:
    """Return class, name and part of every mesh in the archive, sorted; macOS metadata is ignored."""
    with _open(path) as archive:
        names = archive.namelist()
    found = [(_MEMBER.fullmatch(name), name) for name in names if "__MACOSX" not in name]
    members = sorted((match["kind"], name, match["part"].lower()) for match, name in found if match)
    if not members:
        raise DataError(f"expected files like ModelNet10/chair/train/chair_0001.off in {path}, got no meshes.")
    return members


def _rendered(path: Path, names: list[str], workers: int | None) -> Iterator[NDArray[np.uint8]]:
    """Yield the views of each mesh in order, rendered by a pool of processes, or by this one if that fails."""
    done = 0
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cores, 8) if len(names) > _FEW else 1  # each process needs the memory of an import of torch
    if workers > 1:
        try:
            # Fork would copy the locks of torch's and numba's threads.
            pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
            try:
                for views in pool.map(partial(_one, path), names, chunksize=max(1, min(16, len(names) // workers))):
                    done += 1
                    yield views
            finally:
                pool.shutdown(cancel_futures=True)
        except (BrokenProcessPool, OSError, ImportError):  # no semaphores or no memory: continue without a pool
            pass
    if done < len(names):
        with _open(path) as archive:
            for name in names[done:]:
                yield _views(archive, name)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _BROKEN as error:
        raise DataError(
            f"cannot read {path} as a zip archive: {error}. If it is incomplete, download it again."
        ) from error


_open_once = cache(_open)  # for the processes of the pool, because the table of contents is long


def _one(path: Path, name: str) -> NDArray[np.uint8]:
    return _views(_open_once(path), name)


def _views(archive: zipfile.ZipFile, name: str) -> NDArray[np.uint8]:
    try:
        data = archive.read(name)
    except _BROKEN as error:
        raise DataError(f"{name} in {archive.filename} is damaged: {error}. Download the archive again.") from error
    return render(normalise(read_off(data, f"{name} in {archive.filename}")), VIEWS, SIZE)


def complete(path: Path) -> bool:
    """Return whether a file of views has all of ModelNet10, not just a part that was rendered for a test."""
    views = _load(path)
    return (len(views["y_train"]), len(views["y_test"])) == OFFICIAL


def modelnet10(path: Path, seed: int = 0) -> Dataset:
    """Return a data set of 12 parties from a file of views; each has one view of every object, (rows, 1, 32, 32).

    Objects that show nothing are left out. The official test part is split at random by seed: one half for validation,
    one for testing.
    """
    views = _load(path)
    train = _split(views, "train", np.arange(np.count_nonzero(~views["empty_train"])))
    rows = int(np.count_nonzero(~views["empty_test"]))
    validation, test = (_split(views, "test", half.numpy()) for half in halves(rows, seed))
    return Dataset(NAMES, train, validation, test, classes=len(CLASSES))


def _split(views: dict[str, NDArray[Any]], part: str, rows: NDArray[np.int64]) -> Split:
    """Return a split of some nonempty rows; a table maps each of the 256 greys to its normalised value."""
    table = torch.tensor((np.arange(256) / 255 - MEAN) / STD, dtype=torch.float32)
    chosen = np.flatnonzero(~views[f"empty_{part}"])[rows]
    x = torch.from_numpy(views[f"x_{part}"][chosen])
    labels = torch.from_numpy(views[f"y_{part}"][chosen].astype(np.int64))
    return Split([table[x[:, view, None].int()] for view in range(VIEWS)], labels)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of views, after checking their names, dtypes and shapes."""
    wanted = [f"{name}_{part}" for part in ("train", "test") for name in ("x", "y", "empty")]
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            if missing := sorted(set(wanted) - set(arrays.files)):
                raise DataError(f"expected the arrays {sorted(wanted)} in {path}, but {missing} are missing.")
            views = {name: arrays[name] for name in wanted}
    except (*_BROKEN, AttributeError, TypeError) as error:  # the last two are raised for a single .npy array
        raise DataError(
            f"cannot read the views in {path}: {error}. Delete it and run `efvfl data get modelnet10` again."
        ) from error
    for part in ("train", "test"):
        y, empty = views[f"y_{part}"], views[f"empty_{part}"]
        rows = y.size
        kinds = (("x", "uint8", (rows, VIEWS, SIZE, SIZE)), ("y", "uint8", (rows,)), ("empty", "bool", (rows,)))
        for name, dtype, shape in kinds:
            array = views[f"{name}_{part}"]
            if array.dtype != np.dtype(dtype) or array.shape != shape:
                raise DataError(
                    f"expected {dtype} of shape {shape} as {name}_{part} in {path}, got {array.dtype} of shape "
                    f"{array.shape}. Delete the file and run `efvfl data get modelnet10` again."
                )
        if rows and y.max() >= len(CLASSES):
            raise DataError(f"expected labels from 0 to {len(CLASSES) - 1} as y_{part} in {path}, got {y.max()}.")
        if empty.all():
            raise DataError(f"expected {part} objects that show something in {path}, got only empty ones.")
    return views
