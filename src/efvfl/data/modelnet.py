"""ModelNet10 in 12 views: render the official meshes once, then give each of 12 parties one view of every object.

The official archive holds files like ModelNet10/chair/train/chair_0001.off. The views are kept in one .npz file:
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
OFFICIAL = (3991, 908)  # meshes to train on and to test on
VIEWS, SIZE = 12, 32
NAMES = [f"view-{view:02}" for view in range(1, VIEWS + 1)]

# Of all pixels of all views, divided by 255, of the 3,984 training objects that are not empty in the file
# views12_32px.npz (rendered from voxels): x.mean() and x.std(). Fixed, so that every rendering is scaled alike.
MEAN, STD = 0.18524, 0.30147

_MEMBER = re.compile(r"(?:[^/]+/)?(?P<kind>[^/]+)/(?P<part>train|test)/[^/.][^/]*\.off", re.IGNORECASE)
_BROKEN = (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
_FEW = 256  # meshes that are rendered before a second process has started


def render_archive(
    zip_path: Path,
    target: Path,
    progress: Callable[[int, int], None] | None = None,
    expect: tuple[int, int] | None = OFFICIAL,
    workers: int | None = None,
) -> None:
    """Render every mesh of the official archive and write the views to `target`, whole or not at all.

    `progress` is told how many meshes are done, and of how many. An archive with other numbers of training and test
    meshes than `expect` is refused; None takes any. `workers` is the number of processes, by default one for each core.
    """
    members = _members(zip_path)
    names = [name for _, name, _ in members]
    kinds = sorted({kind for kind, _, _ in members})
    parts = {part: np.array([one == part for _, _, one in members]) for part in ("train", "test")}
    counts = (int(parts["train"].sum()), int(parts["test"].sum()))
    if expect is not None and (counts != expect or (expect == OFFICIAL and tuple(kinds) != CLASSES)):
        raise DataError(
            f"{zip_path} holds {counts[0]:,} training and {counts[1]:,} test meshes of {len(kinds)} classes, but "
            f"{expect[0]:,} and {expect[1]:,} were expected: not the official ModelNet10.zip. Get it again."
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
    """Return class, name and part of every mesh in the archive, sorted; what a Mac adds to archives is no mesh."""
    with _open(path) as archive:
        names = archive.namelist()
    found = [(_MEMBER.fullmatch(name), name) for name in names if "__MACOSX" not in name]
    members = sorted((match["kind"], name, match["part"].lower()) for match, name in found if match)
    if not members:
        raise DataError(f"{path} holds no meshes: files like ModelNet10/chair/train/chair_0001.off were expected.")
    return members


def _rendered(path: Path, names: list[str], workers: int | None) -> Iterator[NDArray[np.uint8]]:
    """Yield the views of each mesh in order, made by a pool of processes, or by this one where there is no pool."""
    done = 0
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cores, 8) if len(names) > _FEW else 1  # each takes the memory of an import of torch
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
        except (BrokenProcessPool, OSError, ImportError):  # no semaphores or no memory for it: slower, but no failure
            pass
    if done < len(names):
        with _open(path) as archive:
            for name in names[done:]:
                yield _views(archive, name)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _BROKEN as error:
        raise DataError(f"cannot read {path} as a zip archive: {error}. If it was cut short, get it again.") from error


_open_once = cache(_open)  # for the processes of the pool: the table of contents is long


def _one(path: Path, name: str) -> NDArray[np.uint8]:
    return _views(_open_once(path), name)


def _views(archive: zipfile.ZipFile, name: str) -> NDArray[np.uint8]:
    try:
        data = archive.read(name)
    except _BROKEN as error:
        raise DataError(f"{name} in {archive.filename} is damaged: {error}. Get the archive again.") from error
    return render(normalise(read_off(data, f"{name} in {archive.filename}")), VIEWS, SIZE)


def complete(path: Path) -> bool:
    """Tell whether a file of views holds all of ModelNet10, and not some part that was rendered for a test."""
    views = _load(path)
    return (len(views["y_train"]), len(views["y_test"])) == OFFICIAL


def modelnet10(path: Path, seed: int = 0) -> Dataset:
    """Return a file of views as 12 parties, each with its view of every object, (rows, 1, 32, 32).

    Objects that show nothing are left out. The official test part is cut in half at random by seed: one half to
    validate on, one to test on.
    """
    views = _load(path)
    train = _split(views, "train", np.arange(np.count_nonzero(~views["empty_train"])))
    rows = int(np.count_nonzero(~views["empty_test"]))
    validation, test = (_split(views, "test", half.numpy()) for half in halves(rows, seed))
    return Dataset(NAMES, train, validation, test, classes=len(CLASSES))


def _split(views: dict[str, NDArray[Any]], part: str, rows: NDArray[np.int64]) -> Split:
    """Return some of the rows that are not empty; a table turns each of the 256 greys into its normalised value."""
    table = torch.tensor((np.arange(256) / 255 - MEAN) / STD, dtype=torch.float32)
    chosen = np.flatnonzero(~views[f"empty_{part}"])[rows]
    x = torch.from_numpy(views[f"x_{part}"][chosen])
    labels = torch.from_numpy(views[f"y_{part}"][chosen].astype(np.int64))
    return Split([table[x[:, view, None].int()] for view in range(VIEWS)], labels)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """Read a file of views and check that it is one."""
    wanted = [f"{name}_{part}" for part in ("train", "test") for name in ("x", "y", "empty")]
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            if missing := sorted(set(wanted) - set(arrays.files)):
                raise DataError(f"{path} holds {sorted(arrays.files)}, but {missing} are needed too.")
            views = {name: arrays[name] for name in wanted}
    except (*_BROKEN, AttributeError, TypeError) as error:  # the last two come from a lone .npy array
        raise DataError(f"cannot read the views in {path}: {error}. Remove it and get modelnet10 again.") from error
    for part in ("train", "test"):
        y, empty = views[f"y_{part}"], views[f"empty_{part}"]
        rows = y.size
        kinds = (("x", "uint8", (rows, VIEWS, SIZE, SIZE)), ("y", "uint8", (rows,)), ("empty", "bool", (rows,)))
        for name, dtype, shape in kinds:
            array = views[f"{name}_{part}"]
            if array.dtype != np.dtype(dtype) or array.shape != shape:
                raise DataError(
                    f"{name}_{part} in {path} is {array.dtype} of shape {array.shape}, but {dtype} {shape} was "
                    "expected. Remove the file and get modelnet10 again."
                )
        if rows and y.max() >= len(CLASSES):
            raise DataError(f"y_{part} in {path} holds the label {y.max()}, but 0 to {len(CLASSES) - 1} are expected.")
        if empty.all():
            raise DataError(f"{path} has no {part} objects that show anything.")
    return views
