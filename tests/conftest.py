"""What holds for every test."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from efvfl.cli import quick_start

# onnxruntime reports its use to its makers, unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Blocks in tests are small: a second thread only costs time.
torch.set_num_threads(1)

# As for commands: no process that runs tests waits for the compiler that no optimiser needs.
quick_start.without_compiler()

# A shell starts its background jobs with SIGINT ignored, and children inherit that. Tests send Ctrl-C to processes that
# they start, which must take it as they would in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders whose tests build whole federations, with sockets, certificates, files and commands.
SYSTEM = tuple(Path(__file__).parent / name for name in ("cli", "network"))

# What `--covered` is about: tests that together take nearly every branch of core, wire and compress, and are not slow.
COVERED = tuple(
    Path(__file__).parent / name
    for name in (
        "wire",
        "compress",
        "core",
        "contracts",
        "oracles",
        "training",
        "config",
        "network/training",
        "runs/test_metrics.py",
        "runs/test_estimators.py",
        "runs/test_own_losses.py",
        "util",
    )
)

# Fixtures that start processes or train for seconds: whoever asks for one is slow.
SLOW = {"played", "story", "tapped", "warm_pool"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let CI run every test once, and under coverage only those that the gate on branches needs."""
    parser.addoption("--covered", choices=["only", "skip"], help="only the tests of `make coverage`, or all others")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by their folders and fixtures, before `-m` looks at the marks; then have the slow ones run first."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in SYSTEM):
            item.add_marker(pytest.mark.system)
        if SLOW.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    if wanted := config.getoption("--covered"):
        items[:] = [item for item in items if _covered(item) == (wanted == "only")]
    yield
    items[:] = _slow_first(items, workers=int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_collection_finish() -> None:
    """Have the collector of garbage leave alone what stays to the end: libraries and thousands of tests."""
    gc.collect()
    gc.freeze()


def _slow_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in an order in which every worker begins with its share of the slow ones.

    `--dist worksteal` gives each worker an equal stretch of the list. With all slow tests in the first one, the other
    workers would run out of quick ones, and a slow test at the end would leave a core idle. Modules stay together,
    because their tests share fixtures; otherwise the order is as chance or the files have it.
    """
    slow: dict[Path, list[pytest.Item]] = {}
    quick = []
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(item.path, []).append(item)
        else:
            quick.append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for module in slow.values():
        min(shares, key=len).extend(module)
    ends = [len(items) * (n + 1) // workers for n in range(workers)]
    for share, start, end in zip(shares, [0, *ends], ends, strict=False):
        room = max(0, end - start - len(share))
        share += quick[:room]
        del quick[:room]
    return [item for share in shares for item in share] + quick


def _covered(item: pytest.Item) -> bool:
    return not item.get_closest_marker("slow") and any(item.path.is_relative_to(folder) for folder in COVERED)
