"""How much a client may ask for, what that costs the parties, and what the service remembers of it."""

import copy
import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from services import AWAY, NAMES, PATIENTLY, Running, Trained, check, error
from torch import nn
from warm_processes import PATIENT

from efvfl.config.run_file import LimitConfig, PartyConfig
from efvfl.network.predict import batcher, request_log
from efvfl.network.predict.batch_request import GUESSES
from efvfl.network.predict.cache import IdMemory, MeanRepresentations, RepresentationCache
from efvfl.network.predict.prediction import Declined
from efvfl.network.predict.prefetch import Prefetch
from efvfl.network.predict.quota import ClientQuota
from efvfl.network.predict.request_log import RequestLine, RequestLog


def limited(trained: Trained, rows: int) -> Trained:
    """The same federation with parties that give away so many rows."""
    changed = copy.copy(trained)
    parties = tuple(PartyConfig(name, limits=LimitConfig(rows=rows)) for name in NAMES)
    changed.config = replace(trained.config, party=parties)
    return changed


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / request_log.FILE).read_text().splitlines()]


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# Quotas.


@pytest.mark.attack(
    by="a client",
    tries="asks for more than its 10 ids a minute",
    outcome="429 with Retry-After; other clients and /health are answered",
)
def test_more_ids_than_a_client_may_ask_for(start: Callable[..., Running], trained: Trained) -> None:
    running = start(replace(PATIENTLY, quota=10))
    running.join()
    check(running.predict(trained.ids[:8]), trained, trained.ids[:8])
    response = running.predict(trained.ids[:8])
    assert "expected at most 10 ids a minute of one client" in error(response, 429)["error"]
    assert 1 <= int(response.headers["retry-after"]) <= 60
    check(running.predict(trained.ids[:2]), trained, trained.ids[:2])
    assert running.health()["parties"][AWAY]


def test_a_quota_returns_with_time() -> None:
    clock = Clock()
    quota = ClientQuota(60, 10, clock)
    quota.spend("a", 60)
    with pytest.raises(Declined, match="Ask again in 20 s") as found:
        quota.spend("a", 20)
    assert (found.value.status, found.value.retry) == (429, 20)
    quota.spend("b", 60)  # another client's is its own
    clock.now += 20
    quota.spend("a", 20)
    clock.now += 59
    with pytest.raises(Declined, match="Ask again in 1 s"):
        quota.spend("a", 1000)
    clock.now += 1
    quota.spend("a", 1000)  # more than there ever is: let through when all is there, and paid for later
    clock.now += 60 * 1000 / 60 - 61
    with pytest.raises(Declined):
        quota.spend("a", 1)
    clock.now += 3
    quota.spend("a", 1)
    for _ in range(3):
        ClientQuota(0, 0).spend("a", 10**9)  # 0: no limit
        ClientQuota(0, 0).reserve("a", 10**9)


# Ids that do not exist.


@pytest.mark.attack(
    by="a client",
    tries="asks for 6,000 unknown ids, twice, where every party gives away 1,000 rows in all",
    outcome="404 after 256 of them, the second time without asking; no party ends",
)
def test_unknown_ids_do_not_use_up_a_party(start: Callable[..., Running], trained: Trained) -> None:
    running = start(of=limited(trained, 1000))
    running.join()
    ids = [f"nobody-{n}" for n in range(6000)]
    for _ in range(2):
        assert error(running.predict(ids), 404)["unknown"] == ids[:GUESSES]
    assert running.asked == [(name, ids[:GUESSES]) for name, _ in running.asked]
    assert sorted(name for name, _ in running.asked) == sorted(NAMES)
    check(running.predict(["test:0"]), trained, ["test:0"])


@pytest.mark.attack(
    by="a client",
    tries="asks for ever new unknown ids, 1,000 at a time, with a quota of 300 an hour",
    outcome="429 after 512; rows that exist are still predicted",
)
def test_unknown_ids_have_a_quota(start: Callable[..., Running], trained: Trained) -> None:
    running = start(replace(PATIENTLY, unknown=300))
    running.join()
    for turn in range(2):
        error(running.predict([f"nobody-{turn}-{n}" for n in range(1000)]), 404)
    response = running.predict(["nobody"])
    assert "expected at most 300 unknown ids an hour of one client" in error(response, 429)["error"]
    assert 2000 < int(response.headers["retry-after"]) < 3600
    assert sum(len(ids) for name, ids in running.asked if name == AWAY) == 2 * GUESSES
    check(running.predict(["test:0"]), trained, ["test:0"])


@pytest.mark.attack(
    by="a client",
    tries="sends 8 requests for 1,000 unknown ids each at the same moment, with a quota of 300 an hour",
    outcome="2 of them are asked for in part, the others are declined: they are paid for in advance",
)
def test_requests_at_a_time_share_a_quota(start: Callable[..., Running], trained: Trained) -> None:
    running = start(replace(PATIENTLY, unknown=300))
    wanted = [[f"nobody-{turn}-{n}" for n in range(1000)] for turn in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(running.predict, ids) for ids in wanted]
        running.until(lambda: sum(answer.done() for answer in answers) == 6)
        running.join()
        statuses = sorted(answer.result(PATIENT).status_code for answer in answers)
    assert statuses == [404] * 2 + [429] * 6
    assert sum(len(ids) for name, ids in running.asked if name == AWAY) == 2 * GUESSES


def test_guesses_that_were_right_are_given_back() -> None:
    clock = Clock()
    quota = ClientQuota(0, 10, clock)
    for unknown in (0, 0, 3, 7):
        quota.reserve("a", 10)
        with pytest.raises(Declined):
            quota.reserve("a", 1)  # while the others are asked for
        quota.settle("a", 10, unknown)
    with pytest.raises(Declined, match="in 360 s"):
        quota.reserve("a", 1)
    quota.reserve("b", 1)
    clock.now += 360
    quota.reserve("a", 1)


@pytest.mark.attack(
    by="a client",
    tries="puts one unknown id, a new one each time, beside 200 rows of later files, 20 times; parties give 1,000 rows",
    outcome="the 200 rows are asked for once, then only the unknown ids are; no party ends",
)
def test_rows_beside_an_unknown_id_are_asked_for_once(start: Callable[..., Running], trained: Trained) -> None:
    running = start(of=limited(trained, 1000))
    running.join()
    running.batcher._trained.clear()  # as if all rows had been added after the training
    rows = trained.ids[:200]
    for turn in range(20):
        found = running.predict([*rows, f"nobody-{turn}"]).json()["predictions"]
        assert [row["status"] for row in found] == ["ok"] * 200 + ["unknown"]
    for name in NAMES:
        asked = [ids for who, ids in running.asked if who == name]
        assert asked == [[*rows, "nobody-0"], *([f"nobody-{turn}"] for turn in range(1, 20))]
    check(running.predict(rows), trained, rows)


@pytest.mark.attack(
    by="a client",
    tries="asks for 306 unknown ids beside a row that exists, since unknown ids do not end a request",
    outcome="256 of them are asked for, the others are marked as not asked; the row is predicted",
)
def test_a_request_finds_out_about_as_many_unknown_ids_as_it_paid_for(
    start: Callable[..., Running], trained: Trained
) -> None:
    running = start()
    running.join()
    ids = [f"nobody-{n}" for n in range(GUESSES + 50)]
    found = running.predict(["test:0", *ids]).json()["predictions"]
    assert [row["status"] for row in found] == ["ok", *["unknown"] * GUESSES, *["not asked"] * 50]
    assert {len(asked) for _, asked in running.asked} == {GUESSES, 1}
    again = running.predict([*ids[GUESSES:], "test:0"]).json()["predictions"]  # another request pays again
    assert [row["status"] for row in again] == [*["unknown"] * 50, "ok"]


def test_what_a_party_held_is_forgotten_when_it_connects_again(start: Callable[..., Running], trained: Trained) -> None:
    """It may have lost rows: these must be guesses again, which are asked for few at a time and paid for."""
    running = start(replace(PATIENTLY, source="live"))
    running.join()
    running.batcher._trained.clear()
    rows = trained.ids[:20]
    assert running.predict([*rows, "nobody"]).status_code == 200
    assert running.batcher.guesses(rows) == 0
    running.leave(AWAY)
    running.join(AWAY)
    asked = len(running.asked)
    assert running.predict([*rows, "nobody-else"]).status_code == 200
    assert (AWAY, [*rows, "nobody-else"]) in running.asked[asked:]


def test_ids_that_may_not_exist_are_asked_for_first(start: Callable[..., Running]) -> None:
    """If one does not, the answer has no rows: those that exist would have counted in vain."""
    running = start()
    running.join()
    assert running.predict(["test:0", "nobody", "test:1"]).status_code == 200
    assert [set(ids) for who, ids in running.asked if who == AWAY] == [{"nobody"}, {"test:0", "test:1"}]


@pytest.mark.attack(
    by="a client",
    tries="asks for more rows than a party gives away, again and again",
    outcome="503 at once; the party is asked once a minute, so it can be started again",
)
def test_a_party_that_refuses_is_left_alone(start: Callable[..., Running], trained: Trained) -> None:
    running = start(replace(PATIENTLY, source="live"), of=limited(trained, 2))
    requests = running.batcher.requests
    requests.hooks = replace(requests.hooks, on_tick=lambda: None)  # the end of a party is no trouble of this test
    running.join(AWAY)
    response = running.predict(["test:0", "test:1", "test:2"])
    assert error(response, 503)["missing"] == NAMES
    assert f"{AWAY} refused to answer: a limit of its own may be reached" in response.json()["error"]
    assert response.headers["retry-after"] == str(batcher.REST)
    assert "allows 2" in str(running.network.futures[AWAY].exception(PATIENT))
    running.leave(AWAY)
    running.join(AWAY)  # started again, as a service manager does
    asked = len(running.asked)
    assert AWAY in error(running.predict(["test:0"]), 503)["missing"]
    assert all(name != AWAY for name, _ in running.asked[asked:])
    assert running.health()["parties"][AWAY]


def test_unknown_ids_are_forgotten() -> None:
    clock, first, second = Clock(), object(), object()
    memory = IdMemory(capacity=3, seconds=10, clock=clock)
    assert memory.among(["a"], first) == set()
    memory.add(["a", "b"])
    assert memory.among(["a", "b", "c"], first) == {"a", "b"}
    assert memory.among(["a"], None) == {"a"}  # the party is away
    clock.now += 5
    memory.add(["a", "c", "d"])  # b is the oldest
    assert memory.among(["a", "b", "c", "d"], first) == {"a", "c", "d"}
    clock.now += 9
    assert memory.among(["a", "c"], first) == {"a", "c"}
    clock.now += 1
    assert memory.among(["a", "c"], first) == set()
    memory.add(["a"])
    assert memory.among(["a"], second) == set()  # it has connected again, and may hold more


def test_a_party_may_refuse_to_be_asked_in_advance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caches = {"bank": RepresentationCache(10, 2)}
    means = MeanRepresentations(tmp_path / "means.safetensors", nn.Linear(1, 1), 0)
    made = Prefetch({"train": ["a", "b"], "test": ["c"]}, caches, means, True, ())
    (span,) = made.next(["bank"]).values()
    assert json.loads(made.question(span)) == {"ids": ["a", "b"]}
    made.take("bank", span, b"\x01no training rows\x00[0, 1]")
    assert "bank gives no train rows in advance: 'no training rows'" in caplog.text
    assert made.next(["bank"]) == {"bank": ("test", 0, 1)}
    assert not made.done


# The request log.


def test_who_asked_what(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start(names=frozenset({"scoring"}))
    running.join()
    client = running.client(token="", certificate="scoring")
    client.post("/predict", json={"ids": ["test:0", "test:1"]})
    client.post("/predict", json={"ids": ["test:0", "nobody"]})
    client.post("/predict", content=b"{")
    running.client(token="").post("/predict", json={"ids": ["test:0"]})
    running.client(token="").get("/health")
    running.log.close()
    found = lines(tmp_path)
    assert all(line.pop("time") > 1e9 for line in found)
    common = {"client": "scoring", "address": "127.0.0.1"}
    assert found == [
        common | {"status": 200, "count": 2, "unknown": 0, "ids": ["test:0", "test:1"]},
        common | {"status": 200, "count": 2, "unknown": 1, "ids": ["test:0", "nobody"]},
        common | {"status": 422, "count": 0, "unknown": 0, "ids": []},
        common | {"client": None, "status": 401, "count": 0, "unknown": 0, "ids": []},
    ]
    assert (tmp_path / request_log.FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.attack(
    by="a stranger",
    tries="sends 1,000 requests without credentials to push other lines out of the request log",
    outcome="60 lines a minute are written about them, with the number of the others",
)
def test_a_flood_of_strangers_in_the_log(tmp_path: Path) -> None:
    clock = Clock()
    log = RequestLog(tmp_path, clock=clock)
    for _ in range(1000):
        log.record(RequestLine(None, "192.0.2.1", 401))
    log.record(RequestLine("scoring", "192.0.2.2", ids=("a",)))
    clock.now += 60
    log.record(RequestLine(None, "192.0.2.1", 401))
    log.close()
    found = lines(tmp_path)
    assert [line["client"] for line in found] == [None] * 60 + ["scoring", None]
    assert found[-1]["omitted"] == 940


def test_a_line_that_a_crash_has_cut_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / request_log.FILE).write_text('{"time": 17')
    log = RequestLog(tmp_path)
    log.record(RequestLine("scoring", "192.0.2.1", ids=("a",)))
    log.close()
    cut, whole = (tmp_path / request_log.FILE).read_text().splitlines()
    assert cut == '{"time": 17'
    assert json.loads(whole)["ids"] == ["a"]


def test_the_log_is_rotated(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, size=300)
    (tmp_path / request_log.FILE).touch(0o644)
    for number in range(20):
        log.record(RequestLine("scoring", "192.0.2.1", ids=(f"customer-{number}",)))
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [request_log.FILE] + [f"{request_log.FILE}.{n}" for n in (1, 2, 3)]
    written = [line for name in reversed(files) for line in (tmp_path / name).read_text().splitlines()]
    numbers = [int(json.loads(line)["ids"][0].partition("-")[2]) for line in written]
    assert numbers == list(range(20 - len(numbers), 20))
    assert all((tmp_path / name).stat().st_size <= 300 for name in files)
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in files)


@pytest.mark.attack(
    by="a disk",
    tries="is full while requests are logged",
    outcome="clients are answered, the log says what is missing, and later lines are written again",
)
def test_a_full_disk(
    start: Callable[..., Running],
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = start()
    running.join()
    plain = RequestLog._open

    def full(self: RequestLog) -> IO[bytes]:
        return open("/dev/full", "ab", buffering=0)

    monkeypatch.setattr(RequestLog, "_open", full)
    for _ in range(2):
        check(running.predict(["test:0"]), trained, ["test:0"])
    running.until(lambda: running.log.lost == 2)
    monkeypatch.setattr(RequestLog, "_open", plain)
    check(running.predict(["test:1"]), trained, ["test:1"])
    running.until(lambda: running.log.lost == 0)
    found = lines(tmp_path)
    assert found[0].get("lost") == 2
    assert found[1]["ids"] == ["test:1"]
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [os.strerror(28) in record.getMessage() for record in said] == [True]


def test_a_disk_that_hangs_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "PENDING", 1000)
    log = RequestLog(tmp_path)
    with log._changed:  # so that nothing is taken from the queue
        for _ in range(10):
            log.record(RequestLine("scoring", "192.0.2.1", ids=("a" * 100,)))
        assert log.lost == 7
    log.close()
    found = lines(tmp_path)
    assert [line.get("lost") for line in found] == [7, None, None, None]
