"""What the tests of experiments share."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from warm_processes import WARM

from efvfl.cli import quick_start
from efvfl.experiments import jobs


@pytest.fixture
def warm_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a sweep from one that has torch loaded, instead of starting an interpreter for each."""
    monkeypatch.setattr(jobs, "multiprocessing", SimpleNamespace(get_context=lambda how: WARM))
    quick = partial(ProcessPoolExecutor, initializer=quick_start.without_compiler)
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", quick)
