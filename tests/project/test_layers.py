"""Imports point one way, the half that faces the network never needs torch, and the house stays small enough to see."""

import ast
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from paths import ROOT
from tools import house

import efvfl

WITHOUT_TORCH = ("errors", "wire", "compress.ramp", "training.transport")


@cache
def found() -> list[house.Import]:
    return house.imports()


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in house.sources()}


def in_package(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_every_package_has_its_place() -> None:
    names = {path.name.removesuffix(".py") for path in house.SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert names - {"__pycache__", *house.DOORS} == set(house.LAYERS)
    for package, inner in house.INSIDE.items():
        within = {path.name.removesuffix(".py") for path in (house.SOURCE / package).iterdir()}
        assert within - {"__pycache__", "__init__"} == set(inner)


def test_no_import_points_up() -> None:
    assert house.upward(found()) == []


def test_an_import_that_points_up_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "src" / "efvfl"
    for package in ("core", "network/links", "network/predict", "cli"):
        (source / package).mkdir(parents=True)
        (source / package / "__init__.py").write_text('"""A package."""\n')
    (source / "network" / "__init__.py").write_text('"""A package."""\n')
    (source / "core" / "step.py").write_text("import math\n\ndef f():\n    from efvfl.cli import main\n")
    (source / "network" / "links" / "late.py").write_text("import efvfl.network.predict\nfrom efvfl import core\n")
    (source / "cli" / "main.py").write_text("from efvfl import federate\nfrom efvfl.core import step\n")
    monkeypatch.setattr(house, "SOURCE", source)
    monkeypatch.setattr("sys.argv", ["house"])
    assert house.main() == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "src/efvfl/cli/main.py:1: import from the module that defines the name, not from efvfl itself",
        "src/efvfl/core/step.py:4: core may not import cli, which is above it",
        "src/efvfl/network/links/late.py:1: network.links may not import network.predict, which is above it",
    ]
    assert captured.out.splitlines()[:2] == ["cli                A package", f"{'':<18} -> core"]


def test_nothing_is_imported_relatively() -> None:
    for path, tree in trees().items():
        names = house.imported_names(tree)
        assert not any(name.startswith(".") for _, name in names), f"{path} imports relatively"


def test_there_is_no_circle_of_modules() -> None:
    below: dict[str, set[str]] = {}
    for each in found():
        if each.importer != each.imported and each.importer not in house.DOORS and not each.for_types:
            below.setdefault(each.importer, set()).add(each.imported)
    TopologicalSorter(below).prepare()  # CycleError names the circle


def test_what_faces_the_network_does_not_import_torch() -> None:
    checked = set()
    for path, tree in trees().items():
        module = house.module_name(path)
        if any(in_package(module, package) for package in WITHOUT_TORCH):
            checked.add(module)
            names = house.imported_names(tree)
            assert not any(in_package(name, "torch") for _, name in names), f"{path} imports torch"
    assert {"errors", "wire.packet", "wire.message", "wire.ledger", "compress.ramp", "training.transport"} <= checked


def test_the_house_has_few_doors_and_no_long_file() -> None:
    assert len([path for path in house.SOURCE.iterdir() if path.name != "__pycache__"]) <= 16
    for path in house.sources():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, f"{path} is too long"


def test_no_class_name_is_used_twice() -> None:
    names = Counter(node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_picture_of_the_packages_is_up_to_date() -> None:
    picture = house.picture(house.package_graph(found()))
    committed = (ROOT / "docs/architecture.svg").read_text(encoding="utf-8")
    assert committed == picture, "run: python -m tools.house --svg docs/architecture.svg"


def test_public_names_are_sorted_and_real() -> None:
    upper = [name for name in efvfl.__all__ if name.isupper()]
    camel = [name for name in efvfl.__all__ if name[0].isupper() and not name.isupper()]
    lower = [name for name in efvfl.__all__ if name[0].islower()]
    assert efvfl.__all__ == sorted(upper) + sorted(camel) + sorted(lower)
    for name in efvfl.__all__:
        assert getattr(efvfl, name) is not None
