"""The prediction service over real HTTPS, with parties that come and go in threads of this process."""

import json
import shutil
import socket
import ssl
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import networks
import numpy as np
import pytest
import torch
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Network, process_of
from prometheus_client.parser import text_string_to_metric_families
from services import AWAY, BRIEF, NAMES, PATIENTLY, TOKEN, Running, Trained, check, error
from warm_processes import PATIENT, Process

from efvfl.cli.main import main
from efvfl.errors import ConfigError
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.ops import audit_log
from efvfl.network.predict import batcher, service
from efvfl.network.predict.batcher import PredictionBatcher, ServiceSettings
from efvfl.network.predict.cache import RepresentationCache
from efvfl.network.predict.prediction import Declined, prediction_columns
from efvfl.network.training.questions import read_held
from efvfl.util import checkpoint

# What is predicted.


def test_predictions_are_those_of_one_process(start: Callable[..., Running], trained: Trained) -> None:
    running = start()
    running.join()
    ids = ["test:3", "train:7", "validation:0", "test:3", "train:0"]
    for _ in range(2):  # from the parties, then from what is kept
        check(running.predict(ids), trained, ids)
    assert sorted(name for name, _ in running.asked) == sorted(NAMES)
    assert running.health() == {
        "parties": dict.fromkeys(NAMES, True),
        "cached": dict.fromkeys(NAMES, 4),
        "warm": True,
    }


def test_the_label_holders_own_party_takes_part(
    start: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = Trained(tmp_path_factory.mktemp("own"), label_holder="top-left")
    running = start(replace(PATIENTLY, warm=True), of=own)
    running.join(*NAMES[1:])
    running.until(lambda: running.health()["warm"])
    asked, lost = len(running.asked), [f"nobody-{n}" for n in range(300)]
    found = running.predict([*lost, "test:0"]).json()["predictions"]
    assert found[0] == {"id": "nobody-0", "status": "unknown", "lacking": ["top-left"]}
    assert [row["status"] for row in found[1:]] == ["unknown"] * 299 + ["ok"]
    assert len(running.asked) == asked  # what the label holder's own party lacks need not be asked of the others
    running.leave(*NAMES[1:])
    check(running.predict(own.ids), own, own.ids)


def test_rows_that_are_kept_need_no_party(start: Callable[..., Running], trained: Trained) -> None:
    running = start(PATIENTLY)
    running.join()
    ids = ["test:0", "test:1"]
    check(running.predict(ids), trained, ids)
    running.leave(AWAY)
    check(running.predict(ids[::-1]), trained, ids[::-1])
    assert running.decline(["test:0", "test:2"]) == [AWAY]


def test_ids_are_found_however_they_are_written_and_shown_as_they_were(
    start: Callable[..., Running], trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(PATIENTLY)
    monkeypatch.setattr(running.batcher.process, "in_one_form", lambda ids: [i.strip().lower() for i in ids])
    running.join()
    for ids in (["TEST:0", " test:1"], ["Test:1", "test:0"]):  # asked for, then remembered
        rows = running.predict(ids).json()["predictions"]
        assert [(row["id"], row["status"]) for row in rows] == [(i, "ok") for i in ids]


def test_live_asks_every_time(start: Callable[..., Running], trained: Trained) -> None:
    running = start(replace(PATIENTLY, source="live"))
    running.join()
    for ids in (["test:0"], ["test:1"], ["test:0"]):
        check(running.predict(ids), trained, ids)
    assert [ids for name, ids in running.asked if name == AWAY] == [["test:0"], ["test:1"], ["test:0"]]
    assert running.health()["cached"] == dict.fromkeys(NAMES, 0)
    running.leave(AWAY)
    assert running.decline(["test:0"]) == [AWAY]


def test_a_party_that_goes_and_comes_back(start: Callable[..., Running], trained: Trained) -> None:
    running = start(replace(PATIENTLY, source="live"))
    running.join()
    check(running.predict(["test:0"]), trained, ["test:0"])
    running.leave(AWAY)
    assert running.decline(["test:0"]) == [AWAY]
    running.join(AWAY)
    check(running.predict(["test:0"]), trained, ["test:0"])


def test_a_request_waits_for_a_party_that_is_on_its_way(start: Callable[..., Running], trained: Trained) -> None:
    running = start(PATIENTLY)
    running.join(*[name for name in NAMES if name != AWAY])
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(running.predict, ["test:0"])
        running.until(lambda: len(running.asked) == len(NAMES) - 1)
        running.join(AWAY)
        check(answer.result(PATIENT), trained, ["test:0"])


def test_all_rows_are_fetched_at_the_start(start: Callable[..., Running], trained: Trained) -> None:
    running = start(replace(PATIENTLY, warm=True))
    assert not running.health()["warm"]
    running.join()
    running.until(lambda: running.health()["warm"])
    running.leave()
    check(running.predict(trained.ids), trained, trained.ids)


def test_many_requests_at_a_time(start: Callable[..., Running], trained: Trained) -> None:
    running = start(PATIENTLY)
    running.join()
    wanted = [[trained.ids[(7 * k + n) % len(trained.ids)] for n in range(5)] for k in range(24)]
    with ThreadPoolExecutor(8) as threads:
        for ids, answer in zip(wanted, threads.map(running.predict, wanted), strict=True):
            check(answer, trained, ids)


def test_the_service_and_predict_give_a_row_the_same_bits(start: Callable[..., Running], trained: Trained) -> None:
    """Whatever it is asked with: `efvfl predict` asks for many rows at a time, a client for one."""
    running = start(replace(PATIENTLY, source="live"))
    running.join()
    ids = trained.ids[:50]
    found: dict[str, set[tuple[float, ...]]] = {i: set() for i in ids}
    for size in (1, 3, 17, 50):
        for asked in (ids[:size], ids[-size:]):
            for row in running.predict(asked).json()["predictions"]:
                found[row["id"]].add(tuple(row["probabilities"]))
    running.batcher.stop()  # then its thread asks no more, and the parties can be asked from here
    running.worker.join()
    serving = running.network.serving
    assert serving is not None
    serving.requests.stopping.clear()
    columns = prediction_columns(serving.predict(ids).output, trained.config.loss)
    for i, shares in zip(ids, columns["probabilities"], strict=True):
        assert found[i] == {tuple(shares)}


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
def test_a_probability_does_not_depend_on_its_place(loss: str) -> None:
    output = torch.randn(203, 3 if loss == "cross_entropy" else 1, generator=torch.Generator().manual_seed(1)).double()
    key = "probabilities" if loss == "cross_entropy" else "probability"
    whole = prediction_columns(output, loss)[key]
    for size in range(1, 203):
        assert prediction_columns(output[:size], loss)[key][-1] == whole[size - 1], size


def test_small_writes_are_not_held_back(start: Callable[..., Running]) -> None:
    """Or every answer takes 40 ms: the client's confirmation of the head is waited for before the body is sent."""
    running = start()
    with running.client() as client:
        client.get("/health")
        (connection,) = running.server.server_state.connections
        line = connection.transport.get_extra_info("socket")
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_two_requests_become_one_question(trained: Trained, tmp_path: Path) -> None:
    for folder in ("server", *NAMES):
        shutil.copytree(trained.folder / folder, tmp_path / folder)
    with Network(trained.config, tmp_path) as network:
        serving = network.serving
        assert serving is not None
        asked: list[Any] = []

        def wrote(name: str, way: str, frame: Frame) -> None:
            if frame.kind == FrameKind.ASK:
                asked.append(frame)

        serving.requests.hooks = replace(serving.requests.hooks, on_frame=wrote)
        made = PredictionBatcher(serving, PATIENTLY)
        futures = [made.submit(["test:0", "test:1"]), made.submit(["test:1", "test:2"])]
        network.join_all()
        worker = threading.Thread(target=made.run)
        worker.start()
        for future, ids in zip(futures, (["test:0", "test:1"], ["test:1", "test:2"]), strict=True):
            found = torch.tensor(future.result(PATIENT).columns["probabilities"])
            np.testing.assert_allclose(found, trained.shares(ids), atol=1e-6)
        made.stop()
        worker.join()
        assert made.error is None
    assert [json.loads(frame.body) for frame in asked] == [{"ids": ["test:0", "test:1", "test:2"]}] * len(NAMES)


@pytest.mark.parametrize(
    ("loss", "output", "expected"),
    [
        ("cross_entropy", [[0.0, 0.0]], {"prediction": [0], "probabilities": [[0.5, 0.5]]}),
        ("binary_cross_entropy", [[0.0], [1e9]], {"prediction": [0, 1], "probability": [0.5, 1.0]}),
        ("mse", [[2.5], [-1.0]], {"prediction": [2.5, -1.0]}),
    ],
)
def test_what_an_output_means(loss: str, output: list[list[float]], expected: dict[str, Any]) -> None:
    assert prediction_columns(torch.tensor(output), loss) == expected


# What is refused.


def test_ids_that_nobody_holds(start: Callable[..., Running], trained: Trained) -> None:
    running = start()
    running.join()
    body = b'{"ids": ["test:0", "nobody", "test:1", "\\ud83d\\ude00", "nobody"]}'
    response = running.client().post("/predict", content=body)
    rows = response.json()["predictions"]
    assert [row["id"] for row in rows] == ["test:0", "nobody", "test:1", "\U0001f600", "nobody"]
    assert [row["status"] for row in rows] == ["ok", "unknown", "ok", "unknown", "unknown"]
    assert rows[1] == {"id": "nobody", "status": "unknown", "lacking": NAMES}
    alone = running.predict(["test:0", "test:1"])
    assert [rows[0], rows[2]] == alone.json()["predictions"]
    check(alone, trained, ["test:0", "test:1"])
    answer = error(running.predict(["nobody", "\U0001f600"]), 404)
    assert answer["unknown"] == ["nobody", "\U0001f600"]
    assert "2 ids are not held by top-left, " in answer["error"]


def test_one_clients_unknown_ids_are_not_another_clients_trouble(trained: Trained, tmp_path: Path) -> None:
    for folder in ("server", *NAMES):
        shutil.copytree(trained.folder / folder, tmp_path / folder)
    with Network(trained.config, tmp_path) as network:
        assert network.serving is not None
        made = PredictionBatcher(network.serving, PATIENTLY)
        wrong, right = made.submit(["test:0", "nobody"]), made.submit(["test:0", "test:1"])
        network.join_all()
        worker = threading.Thread(target=made.run)
        worker.start()
        assert right.result(PATIENT).ids == ["test:0", "test:1"]
        assert [status.word for status in wrong.result(PATIENT).outcomes] == ["ok", "unknown"]
        made.stop()
        worker.join()


def test_without_credentials_nothing_is_predicted(start: Callable[..., Running]) -> None:
    running = start()
    running.join()
    for headers in (
        {},
        {"Authorization": TOKEN},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
    ):
        response = running.client(token="").post("/predict", json={"ids": ["test:0"]}, headers=headers)
        assert "Authorization: Bearer TOKEN" in error(response, 401)["error"]
        assert response.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in response.text
    assert running.asked == []
    assert TOKEN not in repr(running.access)


def test_clients_with_certificates(
    start: Callable[..., Running], trained: Trained, tmp_path_factory: pytest.TempPathFactory
) -> None:
    running = start(names=frozenset({"scoring"}))
    running.join()
    body = {"ids": ["test:0"]}
    check(running.client(token="", certificate="scoring").post("/predict", json=body), trained, ["test:0"])
    error(running.client().post("/predict", json=body), 401)  # a token is no certificate
    error(running.client(certificate=AWAY).post("/predict", json=body), 401)  # a party is no client
    assert running.health()["parties"][AWAY]
    strange = tmp_path_factory.mktemp("strange")
    authority.make(strange, ["scoring"])
    for ending in ("crt", "key"):
        shutil.copy(strange / f"scoring.{ending}", running.certs / f"other.{ending}")
    with pytest.raises(httpx.TransportError):
        running.client(certificate="other").post("/predict", json=body)


BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not JSON"),
    "no JSON": (b"ids=1", "not JSON"),
    "no UTF-8": (b'{"ids": ["\xff"]}', "not JSON"),
    "deep": (b"[" * 100_000, "not JSON"),
    "a list": (b'["test:0"]', "with a list of strings"),
    "no ids": (b"{}", "with a list of strings"),
    "numbers": (b'{"ids": [1, 2]}', "with a list of strings"),
    "one text": (b'{"ids": "test:0"}', "with a list of strings"),
    "more keys": (b'{"ids": ["test:0"], "split": "train"}', "and nothing else"),
    "no id": (b'{"ids": []}', "expected 1 to 16,384 ids, got 0"),
    "too many": (json.dumps({"ids": ["x"] * 16_385}).encode(), "expected 1 to 16,384 ids, got 16,385"),
    "an empty id": (b'{"ids": ["test:0", ""]}', "expected ids of 1 to 256 characters, got one of 0"),
    "a long id": (json.dumps({"ids": ["x" * 257]}).encode(), "expected ids of 1 to 256 characters, got one of 257"),
}


def test_bodies_that_are_no_request(start: Callable[..., Running], trained: Trained) -> None:
    running = start()
    running.join()
    client = running.client()
    for name, (body, text) in BODIES.items():
        assert text in error(client.post("/predict", content=body), 422)["error"], name
    assert (
        "expected a body of at most 4,194,304 bytes, got more"
        in error(running.client().post("/predict", content=bytes((4 << 20) + 1)), 413)["error"]
    )
    assert "POST /predict" in error(client.get("/predict"), 405)["error"]
    assert "Not Found" in error(client.get("/docs"), 404)["error"]
    assert running.asked == []
    check(running.predict(["test:0"]), trained, ["test:0"])


def test_a_body_that_does_not_come(start: Callable[..., Running]) -> None:
    running = start(ServiceSettings(timeout=BRIEF))

    def slowly() -> Iterator[bytes]:
        yield b'{"ids": '
        time.sleep(2 * BRIEF)
        yield b'["test:0"]}'

    try:
        response = running.client().post("/predict", content=slowly())
    except httpx.TransportError:  # it was cut off while still sending
        return
    assert "was not received within" in error(response, 408)["error"]


def test_no_more_wait_than_there_is_room_for(start: Callable[..., Running]) -> None:
    running = start(PATIENTLY)
    first = running.batcher.submit(["test:0"])
    running.until(first.running)
    waiting = [running.batcher.submit(["test:1"]) for _ in range(batcher.QUEUE_SIZE)]
    response = running.predict(["test:2"])
    assert f"{batcher.QUEUE_SIZE} requests are waiting for the parties already" in error(response, 429)["error"]
    assert response.headers["retry-after"] == "1"
    running.join()
    for future in (first, *waiting):
        assert future.result(PATIENT).ids


def test_who_waits_when_the_service_ends_is_told(start: Callable[..., Running]) -> None:
    running = start(PATIENTLY)
    first = running.batcher.submit(["test:0"])
    running.until(first.running)
    second = running.batcher.submit(["test:0"])
    running.batcher.stop()
    running.worker.join()
    third = running.batcher.submit(["test:0"])
    for future in (second, third):
        found = future.exception(PATIENT)
        assert isinstance(found, Declined)
        assert found.status == 503


def test_a_party_that_sends_junk_is_refused(start: Callable[..., Running], trained: Trained) -> None:
    running = start(PATIENTLY)
    running.join(*[name for name in NAMES if name != AWAY])
    rogue = process_of(running.network.join(AWAY))
    for junk in (b"[5]", b"", b"no", b'{"0": 1}', b"[true]", b"[1, 0]", b"[]", b"[" * 40):
        with pytest.raises(Exception, match="does not say which"):
            read_held(AWAY, b"\x02" + junk + b"\x00", 5, 4)
    rogue.represent = lambda question: (1, b"\x02I have none")
    running.batcher.requests.hooks = Hooks()  # its end is no trouble of this test
    assert running.decline(["test:0"]) == [AWAY]
    assert "does not say which" in str(running.network.futures[AWAY].exception(PATIENT))
    rogue.message_log.close()
    running.join(AWAY)
    check(running.predict(["test:0"]), trained, ["test:0"])


# What stands in for a missing party.


def test_the_mean_stands_in_and_is_marked(start: Callable[..., Running], trained: Trained) -> None:
    chosen = replace(PATIENTLY, fallback="mean")
    running = start(chosen)
    running.join()
    running.until(lambda: running.health()["warm"])
    check(running.predict(["test:0"]), trained, ["test:0"])
    place = NAMES.index(AWAY)
    h = [model(x) for model, x in zip(trained.whole.models, trained.columns(["test:0", "test:1"]), strict=True)]
    h[place][1] = trained.whole.models[place](trained.whole.splits["train"].features[place]).mean(dim=0)
    expected = torch.softmax(trained.whole.fusion(h).double(), dim=1).detach().numpy()
    for _ in range(2):  # the second time after a restart, and the party has not been here since
        if _:
            running = start(chosen)
            running.join(*[name for name in NAMES if name != AWAY])
        else:
            running.leave(AWAY)
        rows = running.predict(["test:0", "test:1"]).json()["predictions"]
        assert rows[1]["fallback"] == [AWAY]
        assert ("fallback" in rows[0]) == bool(_)  # its row was kept, until the restart
        np.testing.assert_allclose(rows[1]["probabilities"], expected[1], atol=1e-6)


def test_means_alone_predict_nothing(start: Callable[..., Running]) -> None:
    running = start(replace(PATIENTLY, fallback="mean"))
    running.join()
    running.until(lambda: running.health()["warm"])
    running.leave()
    assert running.decline(["nobody"]) == NAMES


def test_a_mean_of_another_model_is_not_used(start: Callable[..., Running], tmp_path: Path) -> None:
    chosen = replace(PATIENTLY, fallback="mean")
    running = start(chosen)
    running.join()
    running.until(lambda: running.health()["warm"])
    running = start(chosen)
    assert running.health()["warm"]  # nothing is fetched again
    state = checkpoint.load(tmp_path / "server" / "means.safetensors")
    assert set(state["means"]) == set(NAMES)
    checkpoint.save(tmp_path / "server" / "means.safetensors", state | {"model": "another"})
    running = start(chosen)
    assert not running.health()["warm"]
    running.join(*[name for name in NAMES if name != AWAY])
    assert running.decline(["test:0"]) == [AWAY]


def test_without_a_fallback_nothing_stands_in(start: Callable[..., Running]) -> None:
    running = start(replace(PATIENTLY, fallback="mean"))
    running.join()
    running.until(lambda: running.health()["warm"])
    running = start(PATIENTLY)
    running.join(*[name for name in NAMES if name != AWAY])
    assert running.decline(["test:0"]) == [AWAY]


# What is kept.


@settings(deadline=None)
@given(st.integers(1, 6), st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True), max_size=20))
def test_the_longest_unused_rows_go_first(room: int, visits: list[list[int]]) -> None:
    """Against a plain ordered dictionary: even visits put rows in, odd ones look them up."""
    kept, plain = RepresentationCache(room, 2), OrderedDict[str, float]()
    for number, visit in enumerate(visits):
        ids = [str(n) for n in visit]
        if number % 2 == 0:
            values = [float(number), *map(float, visit[1:])]
            kept.put(ids, np.array([[v, -v] for v in values], dtype=np.float32))
            for i, value in zip(ids, values, strict=True):
                plain[i] = value
                plain.move_to_end(i)
                if len(plain) > room:
                    plain.popitem(last=False)
            continue
        known, rows = kept.get(ids)
        assert known == [i for i in ids if i in plain]
        assert rows.tolist() == [[plain[i], -plain[i]] for i in known]
        for i in known:
            plain.move_to_end(i)
    assert len(kept) == len(plain)


# The command.


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "token"
    token = service.read_token(path)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert service.read_token(path) == token
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"others than its owner can read the token .* \(mode 644\)"):
        service.read_token(path)
    path.chmod(0o600)
    for text in ("", "short", "x" * 30 + " y" * 10):
        path.write_text(text)
        with pytest.raises(ConfigError, match="at least 32 characters without spaces"):
            service.read_token(path)
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigError, match="Delete the file to have a new one made"):
        service.read_token(path)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--insecure", "--listen", "0.0.0.0:0"], "expected a loopback address with --insecure, got '0.0.0.0:0'"),
        (["--insecure", "--listen", "127.0.0.1:x"], "cannot listen on '127.0.0.1:x'"),
        (["--insecure", "--client-certs", "scoring"], "--client-certs goes with neither --insecure nor --token-file"),
        (["--insecure", "--tls-cert", "a", "--tls-key", "b"], "--tls-cert has no effect"),
        (["--tls-cert", "a"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "absent.crt", "--tls-key", "absent.key"], "cannot use absent.crt with absent.key"),
        (["--timeout", "0"], "expected --timeout and --cache-rows above 0, got 0 and 1000000"),
        (["--timeout", "inf"], "expected --timeout and --cache-rows above 0, got inf and 1000000"),
        (["--quota", "-1"], "expected --quota and --unknown-quota of at least 0, got -1 and 1000"),
        (["--warm", "--source", "live"], "--warm fetches rows to cache them"),
        (["--dir", "empty"], "is not finished: run `efvfl serve "),
    ],
)
def test_a_command_that_cannot_be(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained.folder / "server", tmp_path / "server")
    common = ["--dir", "server", "--certs", str(trained.folder / "certs"), "--address", "127.0.0.1:0"]
    assert main(["serve-predictions", str(trained.file), *common, *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.attack(
    by="another user of the machine",
    tries="reads the service's own TLS key, which is left with mode 644",
    outcome="the service refuses to start and says which chmod to run",
)
def test_a_tls_key_that_others_can_read(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained.folder / "server", tmp_path / "server")
    for ending in ("crt", "key"):
        shutil.copy(trained.folder / "certs" / f"server.{ending}", tmp_path / f"own.{ending}")
    (tmp_path / "own.key").chmod(0o644)
    words = ["--dir", "server", "--certs", str(trained.folder / "certs"), "--address", "127.0.0.1:0"]
    words += ["--listen", "127.0.0.1:0", "--tls-cert", "own.crt", "--tls-key", "own.key"]
    # Code that does not refuse would go on to serve.
    monkeypatch.setattr(service, "run", lambda *arguments: None)
    assert main(["serve-predictions", str(trained.file), *words]) == 2
    assert "(mode 644). Run `chmod 600 own.key`." in capsys.readouterr().err
    (tmp_path / "own.key").chmod(0o600)
    assert main(["serve-predictions", str(trained.file), *words]) == 0


def test_certificates_for_clients_and_further_names_of_the_server(trained: Trained, tmp_path: Path) -> None:
    words = ["--client", "scoring", "reports", "--host", "predictions.example.org"]
    assert main(["certs", str(trained.file), "--out", str(tmp_path / "certs"), *words]) == 0
    assert certificates.load(tmp_path / "certs", "reports").name == "reports"
    server = x509.load_pem_x509_certificate((tmp_path / "certs" / "server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server", "predictions.example.org"]


def test_without_the_packages_the_command_says_what_to_install(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "efvfl.network.predict.http_app")
    shutil.copytree(trained.folder / "server", tmp_path / "server")
    common = ["--dir", str(tmp_path / "server"), "--certs", str(trained.folder / "certs"), "--address", "127.0.0.1:0"]
    assert main(["serve-predictions", str(trained.file), *common]) == 2
    assert "serve-predictions needs fastapi: pip install 'efvfl[service]'." in capsys.readouterr().err


@pytest.mark.slow
def test_sigterm_answers_open_requests_and_ends(trained: Trained, tmp_path: Path) -> None:
    for folder in ("server", *NAMES):
        shutil.copytree(trained.folder / folder, tmp_path / folder)
    words = ["serve-predictions", str(trained.file), "--dir", "server", "--address", "127.0.0.1:0"]
    words += [
        "--certs",
        str(trained.folder / "certs"),
        "--listen",
        "127.0.0.1:0",
        "--status",
        "json",
        "--timeout",
        "300",
        "--metrics",
        "0",
    ]
    process = Process(tmp_path, *words)
    parties = {name: networks.member(networks.ready(trained.config, name), tmp_path / name) for name in NAMES}
    loops: list[Dialler] = []
    threads = ThreadPoolExecutor()
    try:
        ports = {key: process.port(key) for key in ("metrics", "port", "service")}

        def join(name: str) -> None:
            identity = certificates.load(trained.folder / "certs", name)
            connect = partial(dial, f"127.0.0.1:{ports['port']}", identity, 64 << 20)
            loops.append(Dialler(parties[name], connect, networks.WAITING))
            threads.submit(loops[-1].run)

        for name in NAMES[1:]:
            join(name)
        context = ssl.create_default_context(cafile=trained.folder / "certs" / "ca.crt")
        token = (tmp_path / "server" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        url = f"https://127.0.0.1:{ports['service']}"
        with httpx.Client(base_url=url, verify=context, headers=headers, timeout=PATIENT) as client:
            ends = time.monotonic() + PATIENT
            while sum(client.get("/health").json()["parties"].values()) < len(NAMES) - 1:
                assert time.monotonic() < ends
                time.sleep(0.02)
            assert client.post("/predict", headers={"Authorization": "Bearer guessed"}).status_code == 401
            text = httpx.get(f"http://127.0.0.1:{ports['metrics']}/metrics", trust_env=False).text
            found = {s.name: s for family in text_string_to_metric_families(text) for s in family.samples}
            assert found["efvfl_requests_total"].labels == {"status": "401"}
            assert found["efvfl_requests_total"].value == found["efvfl_request_seconds_count"].value == 1
            assert "efvfl_missing_seconds" in found
            answer = threads.submit(client.post, "/predict", json={"ids": ["test:0"]})
            while not any(line.kind == "ask" for line in audit_log.read(tmp_path / "server")):
                assert time.monotonic() < ends
                time.sleep(0.02)
            process.stop()
            join(NAMES[0])
            check(answer.result(PATIENT), trained, ["test:0"])
        assert process.end().code == 0, process.errors
        assert "Traceback" not in process.errors
    finally:
        process.kill().end()
        for loop in loops:
            loop.stopping.set()
        threads.shutdown(wait=True)
        for member in parties.values():
            member.message_log.close()
