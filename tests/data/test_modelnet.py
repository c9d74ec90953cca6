"""ModelNet10: a small archive in the official form becomes a file of views, whole or not at all, and a data set."""

import io
import os
import zipfile
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from efvfl.data import modelnet
from efvfl.data.mesh import normalise, read_off, render
from efvfl.data.modelnet import CLASSES, MEAN, NAMES, STD, complete, modelnet10, render_archive
from efvfl.errors import DataError
from efvfl.util.rng import derive, permutation

EMPTY = "OFF\n3 1 0\n0 0 0\n1 1 1\n2 2 2\n3 0 1 2\n"  # a triangle without area


def box(x: float, y: float, z: float, header: str = "OFF\n") -> str:
    corners = [(a * x, b * y, c * z) for c in (0, 1) for a, b in ((0, 0), (1, 0), (1, 1), (0, 1))]
    faces = ["0 1 2 3", "4 5 6 7", "0 1 5 4", "1 2 6 5", "2 3 7 6", "3 0 4 7"]
    lines = [f"{header}8 6 0", *(f"{a:.6f} {b:.6f} {c:.6f}" for a, b, c in corners), *(f"4 {face}" for face in faces)]
    return "\n".join(lines) + "\n"


FILES = {
    "ModelNet10/README.txt": "about this data",
    "ModelNet10/.DS_Store": "junk",
    "ModelNet10/table/train/table_0002.off": box(3, 2, 1),
    "ModelNet10/table/train/table_0001.off": box(3, 3, 1, header="OFF"),
    "ModelNet10/table/test/table_0003.off": box(2, 3, 1),
    "ModelNet10/table/test/table_0004.off": box(2, 5, 1),
    "ModelNet10/chair/train/chair_0001.off": box(1, 1, 2),
    "ModelNet10/chair/train/chair_0002.off": EMPTY,
    "ModelNet10/chair/train/.hidden.off": "junk",
    "ModelNet10/chair/test/chair_0003.off": box(1, 1, 3),
    "ModelNet10/chair/test/chair_0004.off": EMPTY,
    "__MACOSX/ModelNet10/chair/train/._chair_0001.off": "junk",
}


def archive(path: Path, files: dict[str, str] = FILES) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture
def views(tmp_path: Path) -> Path:
    target = tmp_path / "cache" / "views.npz"
    render_archive(archive(tmp_path / "ModelNet10.zip"), target, expect=None)
    return target


def test_the_archive_becomes_a_file_of_views(tmp_path: Path) -> None:
    target, told = tmp_path / "views.npz", []
    render_archive(archive(tmp_path / "ModelNet10.zip"), target, lambda *args: told.append(args), expect=(4, 4))
    assert told == [(done, 8) for done in range(1, 9)]
    found = arrays(target)
    assert set(found) == {"x_train", "y_train", "empty_train", "x_test", "y_test", "empty_test"}
    for part in ("train", "test"):
        assert found[f"x_{part}"].shape == (4, 12, 32, 32)
        assert found[f"x_{part}"].dtype == np.uint8
        assert found[f"y_{part}"].dtype == np.uint8
        assert found[f"y_{part}"].tolist() == [0, 0, 1, 1]  # chair comes before table
        assert found[f"empty_{part}"].tolist() == [False, True, False, False]
    glued = normalise(read_off(FILES["ModelNet10/table/train/table_0001.off"].encode()))
    np.testing.assert_array_equal(found["x_train"][2], render(glued))
    assert not complete(target)


@pytest.mark.slow
def test_processes_and_one_process_write_the_same_bytes(views: Path, tmp_path: Path) -> None:
    target = tmp_path / "pool.npz"
    render_archive(tmp_path / "ModelNet10.zip", target, expect=None, workers=2)
    assert target.read_bytes() == views.read_bytes()


@pytest.mark.parametrize("error", [OSError("no semaphores"), ImportError("no locks"), BrokenProcessPool("killed")])
def test_without_a_pool_one_process_does_it(
    error: Exception, views: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        """A pool that breaks after three meshes, or does not start."""

        def __init__(self, *_: Any, **__: Any) -> None:
            if not isinstance(error, BrokenProcessPool):
                raise error

        def map(self, function: Any, names: list[str], chunksize: int) -> Any:
            yield from (function(name) for name in names[:3])
            raise error

        def shutdown(self, cancel_futures: bool) -> None:
            modelnet._open_once(tmp_path / "ModelNet10.zip").close()
            modelnet._open_once.cache_clear()

    monkeypatch.setattr(modelnet, "ProcessPoolExecutor", Failing)
    render_archive(tmp_path / "ModelNet10.zip", tmp_path / "alone.npz", expect=None, workers=2)
    assert (tmp_path / "alone.npz").read_bytes() == views.read_bytes()


def test_a_broken_mesh_is_named_with_its_line_and_nothing_is_left(tmp_path: Path) -> None:
    broken = {
        "ModelNet10/table/train/table_0002.off": FILES["ModelNet10/table/train/table_0002.off"].replace("3.0", "x")
    }
    path = archive(tmp_path / "ModelNet10.zip", FILES | broken)
    with pytest.raises(DataError, match=r"table_0002\.off in .*ModelNet10\.zip, line 4: .*'x00000' is not a finite"):
        render_archive(path, tmp_path / "views.npz", expect=None)
    assert [file.name for file in tmp_path.iterdir()] == ["ModelNet10.zip"]


def test_a_cut_or_damaged_archive_leaves_what_was_there(views: Path, tmp_path: Path) -> None:
    before, path = views.read_bytes(), tmp_path / "ModelNet10.zip"
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        member = file.getinfo("ModelNet10/table/test/table_0003.off")
    at = member.header_offset + 30 + len(member.filename) + 10
    damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
    cases = {
        whole[: len(whole) // 2]: "cannot read .*ModelNet10.zip as a zip archive",
        b"": "cannot read .*ModelNet10.zip as a zip archive",
        damaged: "table_0003.off in .*ModelNet10.zip is damaged",
    }
    for data, message in cases.items():
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            render_archive(path, views, expect=None)
        assert views.read_bytes() == before
        assert [file.name for file in views.parent.iterdir()] == ["views.npz"]
    path.unlink()
    with pytest.raises(DataError, match="cannot read"):
        render_archive(path, views, expect=None)


def test_other_archives_are_refused(tmp_path: Path) -> None:
    path, target = archive(tmp_path / "ModelNet10.zip"), tmp_path / "views.npz"
    with pytest.raises(DataError, match=r"expected 3,991 training and 908 test meshes in .*, got 4 and 4 of 2 classes"):
        render_archive(path, target)
    with pytest.raises(DataError, match=r"expected 4 training and 5 test meshes"):
        render_archive(path, target, expect=(4, 5))
    with pytest.raises(DataError, match="got no meshes"):
        render_archive(archive(path, {"readme.txt": "nothing"}), target, expect=None)
    assert not target.exists()


def test_views_become_twelve_parties(views: Path) -> None:
    data = modelnet10(views, seed=3)
    assert data.names == NAMES
    assert data.names[0] == "view-01"
    assert data.names[-1] == "view-12"
    assert data.classes == 10
    assert data.validation is not None
    assert data.test is not None
    assert data.train.labels.tolist() == [0, 1, 1]  # the empty chair is left out
    raw = arrays(views)
    kept = raw["x_train"][[0, 2, 3]]
    for view, x in enumerate(data.train.features):
        assert x.shape == (3, 1, 32, 32)
        assert x.dtype == torch.float32
        torch.testing.assert_close(x[:][:, 0], torch.tensor((kept[:, view] / 255 - MEAN) / STD, dtype=torch.float32))
    order = permutation(derive(3, "split"), 3, 0, 3)
    for split, rows in ((data.validation, order[:1]), (data.test, order[1:])):
        torch.testing.assert_close(split.labels, torch.tensor([0, 1, 1])[torch.from_numpy(rows)])
        expected = (raw["x_test"][[0, 2, 3]][rows][:, 4] / 255 - MEAN) / STD
        torch.testing.assert_close(split.features[4][:][:, 0], torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x_train", np.zeros((4, 12, 28, 28), np.uint8), r"as x_train in .*, got uint8 of shape \(4, 12, 28, 28\)"),
        ("x_test", np.zeros((4, 12, 32, 32), np.float32), "as x_test in .*, got float32"),
        ("x_test", np.zeros((3, 12, 32, 32), np.uint8), "x_test in .*"),
        ("y_train", np.zeros((4, 1), np.uint8), "y_train in .*"),
        ("y_train", np.uint8(3), "train in .*"),
        ("y_test", np.zeros(4, np.int64), "as y_test in .*, got int64"),
        ("y_test", np.full(4, 10, np.uint8), "expected labels from 0 to 9 as y_test in .*, got 10"),
        ("empty_train", np.zeros(4, np.uint8), "as empty_train in .*, got uint8"),
        ("empty_test", np.ones(4, np.bool_), "expected test objects that show something"),
        ("y_train", None, r"but \['y_train'\] are missing"),
        ("y_train", np.array([{}], dtype=object), "cannot read the views"),
    ],
)
def test_a_wrong_file_of_views_is_refused(name: str, value: Any, message: str, views: Path) -> None:
    changed = arrays(views)
    changed[name] = value
    if value is None:
        del changed[name]
    np.savez(views, **changed)
    with pytest.raises(DataError, match=message):
        modelnet10(views)


def test_what_is_no_file_of_views_is_refused(views: Path, tmp_path: Path) -> None:
    data, lone = views.read_bytes(), io.BytesIO()
    np.save(lone, np.zeros(3))
    middle = len(data) // 2
    for wrong in (b"", b"text", data[:middle], data[:100] + bytes(50) + data[150:], lone.getvalue()):
        views.write_bytes(wrong)
        with pytest.raises(DataError, match=r"cannot read the views in .*`efvfl data get modelnet10` again"):
            modelnet10(views)
    with pytest.raises(DataError, match="No such file"):
        modelnet10(tmp_path / "none.npz")


def test_the_shared_views_load() -> None:
    folder = os.environ.get("EFVFL_DATA")
    path = Path(folder or ".") / "modelnet10" / "views12_32px.npz"
    if not folder or not path.is_file():
        pytest.skip("EFVFL_DATA names no folder with modelnet10/views12_32px.npz")
    assert complete(path)
    data = modelnet10(path)
    assert data.validation is not None
    assert data.test is not None
    assert [len(split.labels) for split in (data.train, data.validation, data.test)] == [3984, 453, 454]
    assert set(data.train.labels.tolist()) == set(range(len(CLASSES)))
    pixels = torch.stack([x[:] for x in data.train.features])
    assert pixels.mean().abs() < 1e-3
    assert (pixels.std() - 1).abs() < 1e-3
