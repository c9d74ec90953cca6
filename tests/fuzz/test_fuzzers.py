"""Every fuzzer for a moment, on the same inputs each time, and all that was ever found; `make fuzz` does more."""

from pathlib import Path

import pytest
from fuzz import CORPUS, found, keep
from fuzzers import FUZZERS, Fuzzer, handler
from hypothesis import HealthCheck, given, settings
from mutations import EDITS, edited

from efvfl.errors import DataError, WireError
from efvfl.network.training.questions import read_answer

NAMES = [fuzzer.name for fuzzer in FUZZERS]
KEPT = [pytest.param(f, path, id=f"{f.name}-{path.name}") for f in FUZZERS for path in found(f.name)]


@pytest.mark.attack(
    by="a party",
    tries="bit flips, cuts, splices and wrong lengths in frames, messages, answers, requests and files",
    outcome="nothing but declared errors: over one million inputs by `make fuzz`",
)
@pytest.mark.parametrize("fuzzer", FUZZERS, ids=NAMES)
def test_only_declared_errors_come_out(fuzzer: Fuzzer) -> None:
    @settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=fuzzer.quick,
        suppress_health_check=list(HealthCheck),
    )
    @given(fuzzer.inputs())
    def attempt(batch: list[bytes]) -> None:
        for data in batch:
            fuzzer.attempt(data)

    attempt()


@pytest.mark.parametrize(("fuzzer", "path"), KEPT)
def test_what_was_found_stays_mended(fuzzer: Fuzzer, path: Path) -> None:
    fuzzer.attempt(path.read_bytes())


@pytest.mark.attack(
    by="the label holder",
    tries="asks for rows of a split whose name is half a surrogate pair",
    outcome="answered that there are none; the party goes on (a traceback before)",
)
def test_half_a_surrogate_pair_in_a_question() -> None:
    _, answer = handler()(b'{"split": "\\ud800", "start": 0, "stop": 5}')
    with pytest.raises(DataError, match=r"bank gives no .* rows by their places up to 5"):
        read_answer("bank", answer, 5, 3)


def test_the_corpus_is_small_and_belongs_to_fuzzers() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= set(NAMES)
    assert all(path.stat().st_size <= 10_000 for path in CORPUS.rglob("*") if path.is_file())


def test_a_finding_is_kept_once(tmp_path: Path) -> None:
    paths = {keep("frames", data, tmp_path) for data in (b"one", b"two", b"one")}
    assert sorted(path.read_bytes() for path in paths) == [b"one", b"two"]
    assert found("frames", tmp_path) == sorted(paths)


def test_other_errors_are_findings() -> None:
    def target(data: bytes) -> None:
        raise {b"a": WireError("declared"), b"b": IndexError("not declared")}[data]

    fuzzer = Fuzzer("toy", lambda: FUZZERS[0].inputs(), target)
    fuzzer.attempt(b"a")
    with pytest.raises(IndexError):
        fuzzer.attempt(b"b")


@pytest.mark.parametrize("kind", EDITS)
def test_every_edit_changes_something(kind: str) -> None:
    before = bytes(range(1, 40))
    after = {edited(before, [(kind, place, value)], [b"another one"]) for place in range(20) for value in range(20)}
    assert after - {before}
