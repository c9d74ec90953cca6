"""The suite of benchmarks: what becomes of what it measures, and the page that is made of it. Nothing is timed here."""

import sys
import time
import tomllib
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import lines, profile, suite
from benchmarks.lines import Line, Report, Section, ratio
from benchmarks.suite import Topic
from benchmarks.timing import Timing, alternate
from tools import performance

from efvfl.compress import decode
from efvfl.core import channel

TOPICS = """
import time
from benchmarks.lines import Line

def good(full):
    return [Line("a", "what was done", 2.0 if full else 1.0, target=1.5)]

def bad(full):
    raise ValueError("no such | number")

def endless(full):
    time.sleep(600)
"""


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_topics.py").write_text(TOPICS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    names = ("bad", "good", "endless")
    made = tuple(
        Topic(name, f"Topic {name}", f"toy_topics:{name}", timeout=60 if name != "endless" else 2) for name in names
    )
    monkeypatch.setattr(suite, "TOPICS", made)


@pytest.mark.slow
def test_a_topic_that_fails_says_so_and_the_others_run(
    topics: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "bench.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(out)])
    assert command.main() == 1
    report = Report.from_json(out.read_text(encoding="utf-8"))
    assert [section.topic for section in report.sections] == ["bad", "good", "endless"]
    bad, good, endless = report.lines
    assert bad.error == "exit code 1: ValueError: no such / number"
    assert good == Line("a", "what was done", 1.0, target=1.5)
    assert endless.error == "not done after 2 s"
    assert "| what was done | 1.00 | ≤ 1.5 | met |" in capsys.readouterr().out
    assert out.with_suffix(".md").read_text(encoding="utf-8") == report.to_markdown()


def test_a_topic_can_be_measured_again_by_itself(topics: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "bench.json"
    kept = Section("endless", "Topic endless", False, 1.0, 0.0, [Line("b", "kept", 3.0)])
    gone = Section("renamed", "A topic of old", False, 1.0, 0.0, [])
    command.write(Report(lines.machine_facts(), [kept, gone]), out)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "good", "--full", "--out", str(out)])
    assert command.main() == 0
    found = Report.from_json(out.read_text(encoding="utf-8"))
    assert [section.topic for section in found.sections] == ["good", "endless"]
    assert found.sections[1] == kept
    assert (found.sections[0].full, found.lines[0].value) == (True, 2.0)
    other = Report({"processor": "another"}, [kept])
    command.write(other, out)
    assert command.earlier(out, lines.machine_facts()).sections == []


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"there is no topic stpe; topics are step, images"):
        suite.chosen(["stpe"], full=False)
    short, long = ([topic.name for topic in suite.chosen([], full)] for full in (False, True))
    assert set(long) - set(short) == {"pipeline", "link"}


def test_every_topic_leads_to_a_function() -> None:
    for topic in suite.TOPICS:
        module, _, function = topic.work.partition(":")
        __import__(module)
        assert callable(getattr(sys.modules[module], function)), topic.name


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (Line("a", "", 1.4, target=1.4), "met"),
        (Line("a", "", 2.1, target=1.4), "missed by 50 %"),
        (Line("a", "", 1.4001, target=1.4), "missed by 1 %"),
        (Line("a", "", 1.2, target=1.6, floor=True), "missed by 25 %"),
        (Line("a", "", 1.7, target=1.6, floor=True), "met"),
        (Line("a", "", 2.1, target=1.4, spread=0.9), "too noisy to tell"),
        (Line("a", "", 2.1), ""),
        (Line("a", "", None, target=1.4), ""),
        (Line("a", "", error="gone"), "failed"),
    ],
)
def test_a_line_says_how_it_stands_to_its_target(line: Line, verdict: str) -> None:
    assert line.verdict == verdict
    assert line.missed == verdict.startswith("missed")


def test_a_ratio_is_taken_round_by_round() -> None:
    busy = [1.0, 5.0, 1.0, 2.0]
    line = ratio("a", "b", Timing([3 * slow for slow in busy]), Timing(busy), 2.0, "threads 1 / 1")
    assert (line.value, line.spread) == (3.0, 0.0)
    assert line.cells() == ["b", "3.00", "≤ 2", "missed by 50 %", "0 %", "4.50 / 1.50 ms, threads 1 / 1"]


def test_sides_take_turns() -> None:
    order: list[str] = []
    found = alternate({name: lambda n=name: order.append(n) for name in "ab"}, rounds=2, inner=2, warm=1)  # type: ignore[misc]
    assert "".join(order) == "ab" + "aabb" * 2
    assert {name: len(timing.samples) for name, timing in found.items()} == {"a": 2, "b": 2}


def test_a_counter_leaves_out_what_another_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    counters = profile.Counters()
    inner = counters.around("inner", lambda: None)  # from one tick to the next
    outer = counters.around("outer", lambda: [inner(), inner()])
    outer()
    assert counters.seconds == {"inner": 2.0, "outer": 3.0}  # six ticks, five steps between them


def test_counters_go_as_they_came() -> None:
    before = [vars(owner).get(name) for _, owner, name in profile.COUNTED]
    with profile.counting():
        assert vars(channel)["decode"] is not decode
    assert [vars(owner).get(name) for _, owner, name in profile.COUNTED] == before
    assert {part for part, *_ in profile.COUNTED} | {profile.REST} == set(profile.PARTS)


def test_bytes_are_taken_apart_completely() -> None:
    name, method, agreement = profile.BYTES[1]
    up, down = profile.bytes_of(name, method, agreement)
    assert (up.places + up.values + up.headers, up.fusion) == (3_819, 0)
    assert up.values == 4 * 4 * 204  # parties, bytes of a value, entries kept of 2,048
    assert (down.places, down.values) == (0, 4 * 4 * 2_048)


def test_the_page_is_made_of_the_committed_numbers() -> None:
    assert performance.PAGE.read_text(encoding="utf-8") == performance.page(performance.read())


def test_every_target_that_is_missed_is_explained() -> None:
    results = performance.read()
    for line in performance.missed(performance.all_lines(results)):
        assert {"bound", "tried"} <= set(results.notes.get(line.name, {})), (
            f"benchmarks/notes.toml does not explain {line.name}"
        )


def test_a_note_goes_under_its_line() -> None:
    notes = tomllib.loads('[step-a]\nbound = "Memory."\ntried = "Less of it."')
    late = Line("step-a", "a step", 3.0, target=2.0)
    report = Report({}, [Section("step", "Steps", False, 1.0, 0.0, [late, Line("step-b", "another", 1.0)])])
    text = performance.target_text(report.lines, notes)
    assert "- **a step**, missed by 50 %.\n  Bound: Memory.\n  Tried: Less of it." in text
    assert "another" not in text
    assert "another" in performance.section_text(report.sections[0])


def test_a_topic_without_its_data_is_left_out_with_a_reason(
    topics: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EFVFL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(suite, "TOPICS", (Topic("bad", "Topic bad", "toy_topics:bad", data="mnist"),))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(tmp_path / "bench.json")])
    assert command.main() == 0
    assert "bad: left out. The data set 'mnist' was not found (searched" in capsys.readouterr().err
