"""What the tests of experiments share."""

from types import SimpleNamespace

import pytest
from warm_processes import WARM

from efvfl.experiments import jobs


@pytest.fixture
def warm_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a sweep from one that has torch loaded, instead of starting an interpreter for each."""
    monkeypatch.setattr(jobs, "multiprocessing", SimpleNamespace(get_context=lambda how: WARM))
