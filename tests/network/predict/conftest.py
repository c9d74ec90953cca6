"""A trained federation, and services of it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import NAMES, PATIENTLY, Running, Trained

from efvfl.network.predict.batcher import ServiceSettings
from efvfl.network.predict.places import PlaceLimits


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def start(trained: Trained, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def run(
        settings: ServiceSettings | None = None,
        names: frozenset[str] = frozenset(),
        of: Trained = trained,
        limits: PlaceLimits | None = None,
    ) -> Running:
        for one in running:
            one.close()
        running.clear()
        if not (tmp_path / "server").exists():
            for folder in ("server", *NAMES):
                if (of.folder / folder).exists():
                    shutil.copytree(of.folder / folder, tmp_path / folder)
        running.append(Running(of, tmp_path, settings or PATIENTLY, names, limits))
        return running[-1]

    yield run
    for one in running:
        one.close()
