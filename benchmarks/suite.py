"""The topics of the suite. Each runs in a separate process, so that they do not affect each other.

To add a topic, write a function that takes `full` (whether to do the long run) and returns lines, and list it in
`TOPICS`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.lines import Line, Section
from efvfl.data import store

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Topic:
    """One entry of the suite."""

    name: str
    title: str
    work: str  # "module:function", which takes `full` and returns lines
    threads: int = 1  # of torch and OpenMP at the start; 0: as many as cores
    full_only: bool = False
    timeout: float = 900.0  # seconds
    data: str = ""  # a data set that it needs, by the folder it is in

    @property
    def lacks(self) -> str:
        """Say what is not on this machine; empty if all is."""
        return str(store.missing(self.data, self.data)) if self.data and store.find(self.data) is None else ""


TOPICS = (
    Topic("step", "A step of the shallow network against central SGD", "benchmarks.step:lines", threads=0),
    Topic("images", "A step of networks for images against central SGD", "benchmarks.images:lines", threads=0),
    Topic("codecs", "Codecs", "benchmarks.codecs:lines"),
    Topic("growth", "Growth with rows and parties, and memory", "benchmarks.growth:lines"),
    Topic("memory", "Ten million rows with memories in files", "benchmarks.memory:lines"),
    Topic("workers", "A party on several workers", "benchmarks.workers:lines"),
    Topic("round", "A round over the network", "benchmarks.round:lines"),
    Topic("align", "Alignment by private set intersection", "benchmarks.align:lines", threads=0, timeout=3600.0),
    Topic("sweep", "Sweeps", "benchmarks.sweeps:lines"),
    Topic("mnist", "The paper's MNIST table", "benchmarks.sweeps:mnist_table", data="mnist"),
    Topic("pipeline", "Pipelining over a slow line", "benchmarks.pipeline:lines", full_only=True),
    Topic("link", "Over a slow line", "benchmarks.link:report_lines", full_only=True, timeout=3600.0, data="mnist"),
)


def run(topic: Topic, full: bool) -> Section:
    """Run a topic in a separate process; if it fails, its only line has the reason."""
    load, started = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "lines.json"
        error = _run_apart(topic, full, path)
        if error:
            lines = [Line(topic.name, topic.title, error=error)]
        else:
            lines = [Line(**line) for line in json.loads(path.read_text(encoding="utf-8"))]
    return Section(topic.name, topic.title, full, round(time.perf_counter() - started, 1), round(load, 2), lines)


def _run_apart(topic: Topic, full: bool, path: Path) -> str:
    """Return what went wrong, or an empty string."""
    threads = str(topic.threads or os.cpu_count() or 1)
    command = [sys.executable, "-m", "benchmarks.suite", topic.work, str(path), *(["--full"] if full else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, text = process.communicate(timeout=topic.timeout)
        except subprocess.TimeoutExpired:
            return f"not done after {topic.timeout:,.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # a separate session: all its child processes are killed too
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = text.strip().splitlines()[-1:] or ["no reason was given"]
        return f"exit code {process.returncode}: {last[0]}".replace("|", "/")
    return ""


def chosen(names: Sequence[str], full: bool) -> list[Topic]:
    """Return the topics of these names, or all topics of the run."""
    known = {topic.name: topic for topic in TOPICS}
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"there is no topic {', '.join(unknown)}; topics are {', '.join(known)}.")
    return [known[name] for name in names] or [topic for topic in TOPICS if full or not topic.full_only]


def main() -> None:
    """Run one topic in this process, and write its lines to a file."""
    parser = argparse.ArgumentParser(description="One topic of the suite; see python -m benchmarks.")
    parser.add_argument("work", help="module:function")
    parser.add_argument("path", type=Path)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    module, _, function = options.work.partition(":")
    work: Callable[[bool], list[Line]] = getattr(importlib.import_module(module), function)
    found = [asdict(line) for line in work(options.full)]
    options.path.write_text(json.dumps(found, allow_nan=False), encoding="utf-8")  # read only if the process succeeds


if __name__ == "__main__":
    main()
