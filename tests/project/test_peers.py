"""benchmarks/peers: the same problem for all, a table of what was measured, and a runner that survives any script."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import step
from benchmarks.peers import problem, rows, runner
from benchmarks.peers.rows import Failed, Row
from benchmarks.peers.runner import Case


def line(**changes: Any) -> str:
    measured = problem.report(
        "Peer", "1.2", "fast", [2.0, 4.0, 3.0], [2.5] * 30 + [2.0] * 30, {"up": 9, "down": 8}, 0.0
    )
    return json.dumps(json.loads(measured) | changes)


def python(source: str, timeout: float = 60.0) -> str:
    return runner.call([sys.executable, "-c", source], timeout)


def runs(pid: int) -> bool:
    """Whether the process is alive; one that only waits to be collected is not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_problem_is_that_of_the_other_benchmarks() -> None:
    (x, y), (their_x, their_y) = problem.rows(), step.rows(problem.ROWS)
    assert all(torch.equal(a, b) for a, b in zip([*x, y], [*their_x, their_y], strict=True))
    (local, head), (others, other) = problem.models(), step.models()
    for a, b in zip([head, *local], [other, *others], strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.slow
def test_parties_and_server_train_as_plain_sgd_does() -> None:
    parties = [problem.Party(index) for index in range(problem.PARTIES)]

    def exchange(cotangents: list[bytes]) -> list[bytes]:
        return [party.answer(data) for party, data in zip(parties, cotangents, strict=True)]

    samples, losses = problem.train(exchange, warm=5, steps=120)  # into the second epoch
    assert len(samples) == 12
    assert len(losses) == 125
    assert problem.deviation(losses) < 1e-6
    assert problem.deviation([*losses[:-1], losses[-1] + 0.5]) == pytest.approx(0.5)


def test_a_line_among_others_is_read() -> None:
    row = rows.read("peer", f"{line(mode='old')}\n{line()}\n{{not json\n[1]\nbye\n")
    assert (row.peer, row.version, row.mode, row.parties, row.batch, row.steps) == ("Peer", "1.2", "fast", 4, 128, 30)
    assert (row.middle, row.up, row.down, row.loss) == (3.0, 9.0, 8.0, (2.5, 2.0))


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "printed no line of JSON"),
        ("rubbish\n{also}\n", "printed no line of JSON"),
        ('{"peer": "Peer"}', "KeyError: 'version'"),
        (line(milliseconds="quick"), "ValueError"),
        (line(milliseconds=[]), "0 times"),
        (line(bytes=7), "TypeError"),
        (line(loss=[2.3, 2.3]), "nothing was learnt"),
        (line(loss=[2.3, float("nan")]), "nothing was learnt"),
        (line(deviation=0.1), "another network was trained: losses differ from plain SGD's by up to 0.1"),
    ],
)
def test_what_is_not_a_measurement_is_refused(output: str, reason: str) -> None:
    with pytest.raises(Failed, match=reason):
        rows.read("peer", output)


def test_the_table_compares_with_ours_and_names_what_failed() -> None:
    ours = rows.read("efvfl-local", line(peer="efvfl", milliseconds=[1.0, 2.0, 3.0], deviation=None))
    peer = rows.read("peer", line(milliseconds=[10.0, 20.0, 30.0], mode="a | b"))
    lost = Row("fate", failure="exit status 1: a\nb | c")
    lines = rows.table_of([ours, peer, lost]).splitlines()
    assert {text.replace("\\|", "").count("|") for text in lines} == {11}
    assert lines[2] == ("| efvfl 1.2 | fast | 2.00 | 1.00 to 3.00 | 9 | 8 | 2.5000 to 2.0000 | by design | 1.00 |  |")
    assert lines[3].startswith("| Peer 1.2 | a \\| b | 20.00 | 10.00 to 30.00 | 9 | 8 |")
    assert lines[3].endswith("| 0e+00 | 10.00 |  |")
    assert lines[4].startswith("| fate | not measured: exit status 1: a b \\| c | ")


def test_rounds_are_pooled_and_one_that_failed_speaks_for_all() -> None:
    first, second = rows.read("peer", line()), rows.read("peer", line(milliseconds=[5.0, 6.0]))
    pooled = rows.join([first, second])
    assert (pooled.milliseconds, pooled.steps) == ((2.0, 4.0, 3.0, 5.0, 6.0), 60)
    assert rows.join([first, Row("peer", failure="gone")]) == Row("peer", failure="gone")


def test_the_runner_says_why_a_script_failed() -> None:
    assert python("print('well')") == "well\n"
    with pytest.raises(Failed, match=r"exit status 1: ValueError: no such thing$"):
        python("print('so far'); raise ValueError('no such thing')")
    with pytest.raises(Failed, match=r"exit status 3: only this$"):
        python("import sys; print('only this'); sys.exit(3)")
    with pytest.raises(Failed, match="no output"):
        python("import os; os._exit(4)")


@pytest.mark.slow
def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    source = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "print('waiting', flush=True)\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(Failed, match="not finished after 5 s; its last output: waiting"):
        python(source, timeout=5)
    child = int(pid.read_text())
    for _ in range(100):
        if not runs(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the script's child outlived it")


def test_a_peer_that_cannot_be_installed_becomes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def environment(name: str) -> Path:
        raise Failed(f"exit status 1: ERROR: No matching distribution found for {name}")

    monkeypatch.setattr(runner, "environment", environment)
    row = runner.measure(Case("nvflare", 1, 10, peer=True), timeout=60)
    assert row == Row("nvflare", failure="exit status 1: ERROR: No matching distribution found for nvflare")


@pytest.mark.slow
def test_ours_are_measured_as_the_peers_are() -> None:
    row = runner.measure(Case("svfl-local", 20, 60), timeout=300)
    assert not row.failure
    assert (row.peer, row.parties, row.batch, row.steps, len(row.milliseconds)) == ("efvfl", 4, 128, 60, 6)
    assert row.up > 4 * 128 * 16 * 4  # four dense blocks of float32
    assert row.deviation is not None


@pytest.mark.parametrize("case", [case for case in runner.CASES if case.peer], ids=lambda case: case.name)
def test_every_peer_has_a_script_and_pinned_versions(case: Case) -> None:
    assert (runner.HERE / f"on_{case.name}.py").exists()
    pinned = (runner.HERE / f"requirements-{case.name}.txt").read_text().splitlines()
    constraints = (runner.ROOT / "constraints.txt").read_text().splitlines()
    assert all("==" in text for text in pinned)
    assert [text for text in pinned if text.startswith("torch==")] == [
        t for t in constraints if t.startswith("torch==")
    ]
