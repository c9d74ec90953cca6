"""`efvfl doctor` finds what would go wrong: faults of files and machines are played, those of the line are real."""

import errno
import json
import os
import re
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ports import free_port

from efvfl.cli.main import main
from efvfl.config import run_file
from efvfl.errors import ProtocolError
from efvfl.network import handshake
from efvfl.network.doctor import line_probe
from efvfl.network.doctor.checkup import Checkup
from efvfl.network.doctor.diagnosis import Diagnosis
from efvfl.network.doctor.estimate import estimate
from efvfl.network.doctor.line_probe import PROTOCOL, Talk, visit
from efvfl.network.doctor.listening import Waiting
from efvfl.network.doctor.machine import Machine
from efvfl.network.identity import authority, certificates
from efvfl.network.identity.certificates import Credentials
from efvfl.network.identity.deny_list import DenyList
from efvfl.network.links.connecting import shake
from efvfl.network.links.framing import NAME as TRAINING
from efvfl.network.links.line_errors import LineError
from efvfl.network.links.listening import listen, open_listener
from efvfl.network.links.tls import tls_context
from efvfl.network.ops.lock import Lock
from efvfl.network.ops.session import SessionOptions
from efvfl.runs.build import load_data, make_federation

FILE = """
epochs = 4
batch_size = 32
loss = "binary_cross_entropy"
label_holder = "bank"
private_seed = 3
agreement = {{ labels = "private" }}
data = {{ validation = 0.2, test = 0.2 }}
network = {{ address = "127.0.0.1:{port}" }}
model = {{ width = 4 }}
[[party]]
name = "bank"
data = {{ path = "bank.csv", id = "customer", label = "default" }}
[[party]]
name = "telco"
private_seed = 4
data = {{ path = "telco.csv", id = "customer" }}
"""
ROWS = 200
NAMES = ["telco"]
PLAIN = Machine(environ={})
NOW = datetime.now(UTC)


def write_tables(folder: Path, telco: Callable[[int], str] = lambda i: f"c{i:04}") -> None:
    bank = [f"c{i:04},{(i * 37) % 101 / 100},{i % 2}" for i in range(ROWS)]
    (folder / "bank.csv").write_text("\n".join(["customer,income,default", *bank]) + "\n")
    calls = [f"{telco(i)},{(i * 31) % 97}" for i in range(ROWS)]
    (folder / "telco.csv").write_text("\n".join(["customer,calls", *calls]) + "\n")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor")
    write_tables(folder)
    (folder / "fed.toml").write_text(FILE.format(port=free_port()))
    authority.make(folder / "certs", ["server", "telco"], 90)
    return folder


@pytest.fixture
def place(good: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(good, tmp_path / "doctor"))


def examine(
    folder: Path, party: str = "telco", machine: Machine = PLAIN, listen: float = 0.0, address: str = ""
) -> Checkup:
    options = SessionOptions(folder / "fed.toml", folder / "runs" / party, address or None, folder / "certs")
    found = Checkup(options, party, machine)
    found.run(listen)
    return found


def of(found: Checkup, what: str) -> Diagnosis:
    """The one finding about something."""
    (one,) = [each for each in found.findings if each.what == what]
    return one


def worst(found: Checkup, what: str) -> Diagnosis:
    """The worst of the findings about something."""
    return max((e for e in found.findings if e.what == what), key=lambda e: ("ok", "warning", "problem").index(e.grade))


def shared(folder: Path) -> dict[str, object]:
    return handshake.shared_part(run_file.load(folder / "fed.toml"), ["bank", "telco"])


@contextmanager
def waiting(
    folder: Path, names: list[str] = NAMES, seconds: float = 20.0, ahead: float = 0.0
) -> Iterator[tuple[Waiting, str]]:
    """A listening doctor of the label holder, on a port of its own."""
    told: list[str] = []
    here = Waiting(
        certificates.load(folder / "certs", "server"), names, shared(folder), told.append, lambda: time.time() + ahead
    )
    with open_listener("127.0.0.1:0") as listener:
        thread = threading.Thread(target=here.run, args=(listener, seconds))
        thread.start()
        try:
            yield here, f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(60)
        assert not thread.is_alive()


@contextmanager
def serving(credentials: Credentials) -> Iterator[str]:
    """What `efvfl serve` opens."""
    server, port = listen("127.0.0.1:0", credentials, 1 << 20, 1, lambda wire, name: None)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.close()


@contextmanager
def program(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Some other program that listens."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                link, _ = listener.accept()
                with link, suppress(OSError):
                    talk(link)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


# All is well.


def test_both_ends_see_the_line_the_clocks_and_the_estimate(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with waiting(good) as (here, address):
        found = examine(good, address=address)
    assert not found.problems
    assert {each.what for each in found.findings if each.grade == "warning"} == {"alignment"}
    assert "is the server of this federation" in of(found, "line").text
    assert of(found, "clock").grade == "ok"
    assert here.visits["telco"].measured == found.lines["telco"]
    assert found.lines["telco"].up > 1e6
    assert not here.visits["telco"].differences
    table = found.to_table()
    assert json.loads(json.dumps(table))["estimate"]["bytes_up"].keys() == {"telco"}  # the label holder's stay at home
    arguments = [
        "doctor",
        str(good / "fed.toml"),
        "--certs",
        str(good / "certs"),
        "--dir",
        str(good / "state"),
        "--json",
    ]
    assert main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["participant"] == "server"
    assert {each["what"]: each["grade"] for each in shown["findings"]}["port"] == "ok"
    assert shown["estimate"]["rounds"] == 4 * 4
    assert not (good / "state").exists()  # it changes nothing


def test_a_server_that_runs_is_recognised(good: Path) -> None:
    with serving(certificates.load(good / "certs", "server")) as address:
        found = examine(good, address=address)
    assert not found.problems
    assert "It runs, so nothing more is measured" in of(found, "line").text


def test_the_estimate_is_near_what_is_sent(good: Path) -> None:
    config = run_file.load(good / "fed.toml")
    data = load_data(config, good)
    assert data.validation is not None
    assert data.test is not None
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    rows = {name: len(part.labels) for name, part in parts.items()}
    found = estimate(config, ["bank", "telco"], rows, "telco")
    federation = make_federation(config, data)
    last = federation.fit(config.epochs, gradient=False)[-1]
    assert found.rounds == last.step
    assert found.bytes_up["telco"] == pytest.approx(last.bytes_up, rel=0.3)
    assert found.bytes_down["telco"] == pytest.approx(last.bytes_down, rel=0.3)


# Files, tables and ids.


def test_a_file_that_cannot_be_read_and_a_name_that_is_wrong(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(place / "fed.toml"), "--party", "telko", "--certs", str(place / "certs")]) == 2
    shown = capsys.readouterr()
    assert "'telko' is not a party of this federation" in shown.out
    assert "Did you mean 'telco'?" in shown.out
    assert shown.err == "efvfl: 1 problem would stop this participant: party.\n"
    (place / "fed.toml").write_text("epoch = 3\n")
    assert "unknown key 'epoch'" in of(examine(place), "file").text
    assert main(["doctor", str(place / "fed.toml"), "--party", "telco", "--listen", "3"]) == 2


def test_a_missing_column(place: Path) -> None:
    text = (place / "fed.toml").read_text()
    (place / "fed.toml").write_text(text.replace('"telco.csv", id = "customer"', '"telco.csv", id = "custmer"'))
    found = worst(examine(place), "table")
    assert (found.grade, "has no column 'custmer'. Did you mean 'customer'?" in found.text) == ("problem", True)
    (place / "fed.toml").write_text(text.replace('"telco.csv", id', '"telco.csv", columns = ["cals"], id'))
    assert "no column 'cals'. Did you mean 'calls'?" in worst(examine(place), "columns").text
    (place / "telco.csv").unlink()
    assert worst(examine(place), "table").grade == "problem"


@pytest.mark.parametrize(
    ("telco", "grade", "text"),
    [
        (lambda i: f"c{i:04}", "ok", "ids of 5 characters"),
        (lambda i: f"c{i:04} " if i < 9 else f"c{i:04}", "warning", "9 of 200 have spaces around them"),
        (lambda i: f"C{i:04}" if i < 9 else f"c{i:04}", "warning", "9 of 200 have capitals"),
        (lambda i: f"{i + 1:03}", "warning", "99 of 200 begin with zeros"),
        (lambda i: f"c{min(i, 190):04}", "problem", "10 rows share their id with another"),
    ],
)
def test_ids_that_would_not_match(place: Path, telco: Callable[[int], str], grade: str, text: str) -> None:
    write_tables(place, telco)
    text_of_file = (place / "fed.toml").read_text()
    (place / "fed.toml").write_text(text_of_file.replace("data = { val", "data = { id_format = [], val", 1))
    found = examine(place)
    seen = worst(found, "ids")
    assert (seen.grade, text in seen.text) == (grade, True), seen
    shown = json.dumps(found.to_table())
    whole = (rf"(?<![\w.,]){telco(i).strip()}(?![\w.,])" for i in (1, 7, 150))  # not within a port or a size
    assert not any(re.search(pattern, shown) for pattern in whole)  # they are the owner's business


# Keys and clocks.


def made(folder: Path, names: list[str], days: int, now: datetime) -> Path:
    """Certificates with other dates in a copy, signed by the same authority."""
    for name in names:
        (folder / "certs" / f"{name}.crt").unlink()
        (folder / "certs" / f"{name}.key").unlink()
    authority.make(folder / "certs", names, days, now=now)
    return folder


@pytest.fixture(scope="module")
def old(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with an authority that is a year old."""
    folder = Path(shutil.copytree(good, tmp_path_factory.mktemp("old") / "doctor"))
    shutil.rmtree(folder / "certs")
    authority.make(folder / "certs", ["server", "telco"], 800, now=NOW - timedelta(days=365))
    return folder


def test_certificates_that_have_expired_or_are_not_valid_yet(old: Path, tmp_path: Path) -> None:
    late = made(Path(shutil.copytree(old, tmp_path / "late")), ["telco"], 5, NOW - timedelta(days=9))
    found = examine(late)
    assert of(found, "keys").grade == "problem"
    assert "telco.crt expired on" in of(found, "keys").text
    assert of(found, "line").grade == "warning"  # which needs a key
    early = made(Path(shutil.copytree(old, tmp_path / "early")), ["telco"], 5, NOW + timedelta(days=9))
    assert "telco.crt is not valid before" in of(examine(early), "keys").text
    soon = made(Path(shutil.copytree(old, tmp_path / "soon")), ["telco"], 5, NOW)
    assert of(examine(soon), "keys").grade == "warning"
    (old / "certs" / "telco.key").chmod(0o644)
    assert "chmod 600" in of(examine(old), "keys").text
    (old / "certs" / "telco.key").chmod(0o600)


def test_dates_at_the_other_end(old: Path, tmp_path: Path) -> None:
    """The server's certificate has expired, or is not valid yet; or ours has, by the server's clock alone."""
    for days, text in ((-9, "expired on"), (9, "is not valid before")):
        at = NOW + timedelta(days=days)
        there = made(Path(shutil.copytree(old, tmp_path / text)), ["server"], 5, at)
        with serving(certificates.load(there / "certs", "server", now=at)) as address:
            found = of(examine(old, address=address), "line")
        assert (found.grade, text in found.text) == ("problem", True), found
    late = made(Path(shutil.copytree(old, tmp_path / "late")), ["telco"], 5, NOW - timedelta(days=9))
    there_is_time = Machine(now=lambda: NOW - timedelta(days=8), environ={})  # by the clock of this machine
    with waiting(late, seconds=2.0) as (here, address):
        found = of(examine(late, machine=there_is_time, address=address), "line")
    assert "refuses the certificate of 'telco' as expired" in found.text
    with serving(certificates.load(late / "certs", "server")) as address:
        found = of(examine(late, machine=there_is_time, address=address), "line")
    assert "refuses the certificate of 'telco' as expired" in found.text  # the server says so now
    assert here.refused == 1


@pytest.mark.parametrize(("ahead", "grade"), [(0.0, "ok"), (120.0, "warning"), (-3600.0, "problem")])
def test_clocks_that_differ_are_seen_at_both_ends(good: Path, ahead: float, grade: str) -> None:
    with waiting(good, ahead=ahead) as (here, address):
        found = examine(good, address=address)
    assert of(found, "clock").grade == grade
    assert here.visits["telco"].measured.skew == pytest.approx(ahead, abs=5)


def test_a_wrong_authority_at_both_ends(good: Path, place: Path) -> None:
    shutil.rmtree(place / "certs")
    authority.make(place / "certs", ["server", "telco"])
    with serving(certificates.load(good / "certs", "server")) as address:
        found = of(examine(place, address=address), "line")
    assert found.grade == "problem"
    assert "was signed by 'efvfl CA " in found.text
    assert "hand out one ca.crt" in found.advice
    with waiting(good, seconds=2.0) as (here, address):
        examine(place, address=address)
    assert here.refused == 2  # once to learn who is there, without a certificate


# The disk.


def fails(number: int) -> Callable[[Path], float]:
    def flush(folder: Path) -> float:
        raise OSError(number, os.strerror(number))

    return flush


@pytest.mark.parametrize(
    ("machine", "what", "grade", "text"),
    [
        (replace(PLAIN, free=lambda folder: 1_000), "disk", "problem", "1.00 kB free"),
        (replace(PLAIN, free=lambda folder: 1_000_000), "disk", "warning", "1.00 MB free"),
        (replace(PLAIN, flush=fails(errno.ENOSPC)), "disk", "problem", "No space left on device"),
        (replace(PLAIN, flush=fails(errno.EACCES)), "disk", "problem", "Permission denied"),
        (replace(PLAIN, flush=lambda folder: 0.4), "disk speed", "warning", "takes 400 ms"),
    ],
)
def test_a_full_or_slow_disk(good: Path, machine: Machine, what: str, grade: str, text: str) -> None:
    found = of(examine(good, machine=machine), what)
    assert (found.grade, text in found.text) == (grade, True), found


# The port and what is in between.


def test_nobody_at_the_port_or_somebody_else(good: Path) -> None:
    found = of(examine(good), "line")
    assert (found.grade, "nobody listens on 127.0.0.1:" in found.text) == ("problem", True)
    assert "`efvfl doctor --listen`" in found.advice
    with program(lambda link: link.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as address:
        assert "answers, but not with TLS" in of(examine(good, address=address), "line").text
    with program(lambda link: None) as address:
        assert "closes them at once" in of(examine(good, address=address), "line").text
    context = tls_context(certificates.load(good / "certs", "server"), ["http/1.1"], server=True)

    def website(link: socket.socket) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(link, server_side=True) as secure:
            secure.recv(1)

    with program(website) as address:
        assert "is no server for parties" in of(examine(good, address=address), "line").text
    found = of(examine(good, address="no-such-host.invalid:7143"), "name")
    assert (found.grade, "cannot be resolved" in found.text) == ("problem", True)


def test_a_port_in_use(good: Path, place: Path) -> None:
    with program(lambda link: None) as address:
        found = of(examine(good, party="", address=address), "port")
        assert (found.grade, "in use by another process" in found.text) == ("problem", True)
        found = of(examine(good, party="", address=address, listen=5.0), "port")
        assert found.grade == "problem"
        options = SessionOptions(place / "fed.toml", place / "runs", address, place / "certs")
        lock = Lock(place / "runs")  # by `efvfl serve` here
        checkup = Checkup(options, "", PLAIN)
        checkup.run()
        lock.release()
        assert f"process {os.getpid()} works in" in of(checkup, "port").text
    assert of(examine(good, party="", address="192.0.2.1:7143"), "port").grade == "problem"


def connect_proxy(answer: bytes) -> Callable[[socket.socket], None]:
    """A proxy that gives connections, or does not."""

    def talk(link: socket.socket) -> None:
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += link.recv(1)
        host, _, port = asked.split()[1].decode().rpartition(":")
        link.sendall(answer)
        if b" 200 " not in answer:
            return
        with socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=copy, args=(there, link))
            back.start()
            copy(link, there)
            back.join()

    return talk


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_a_proxy_in_between(good: Path) -> None:
    with program(connect_proxy(b"HTTP/1.1 403 Forbidden\r\n\r\n")) as proxy:
        machine = Machine(environ={"https_proxy": f"http://user:secret@{proxy}"})
        found = examine(good, machine=machine, address="127.0.0.1:7143")
        assert "gives no connection to 127.0.0.1:7143 (HTTP/1.1 403 Forbidden)" in of(found, "line").text
        assert f"through the proxy {proxy} (https_proxy)" in of(found, "proxy").text
        assert "no_proxy" in of(found, "proxy").advice
        assert "secret" not in json.dumps(found.to_table())
        machine = Machine(environ={"https_proxy": f"http://{proxy}", "no_proxy": "127.0.0.1"})
        assert "nobody listens" in of(examine(good, machine=machine), "line").text
    with program(connect_proxy(b"HTTP/1.1 200 OK\r\n\r\n")) as proxy, waiting(good) as (_, address):
        found = examine(good, machine=Machine(environ={"HTTPS_PROXY": proxy}), address=address)
        assert (of(found, "proxy").grade, of(found, "line").grade) == ("warning", "ok")
    machine = Machine(environ={"http_proxy": f"http://127.0.0.1:{free_port()}"})
    assert "cannot be reached" in of(examine(good, machine=machine), "line").text


@pytest.mark.parametrize("scheme", ["https", "socks5h"])
def test_a_proxy_that_is_spoken_to_otherwise(good: Path, scheme: str) -> None:
    """It is not told the password, which it could not read, but others could."""
    told: list[bytes] = []
    with program(lambda link: told.append(link.recv(1000))) as proxy:
        machine = Machine(environ={"https_proxy": f"{scheme}://user:secret@{proxy}"})
        found = of(examine(good, machine=machine, address="127.0.0.1:7143"), "line")
    assert f"the proxy {proxy} (https_proxy) is one of {scheme}, and http is needed" in found.text
    assert not any(told)


def test_a_certificate_that_the_server_denies(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that trains says why."""
    monkeypatch.setattr(DenyList, "has", lambda self, fingerprint: True)
    own, denied = certificates.load(good / "certs", "server"), DenyList(good / "fed.toml")
    server, port = listen("127.0.0.1:0", own, 1 << 20, 1, lambda wire, name: None, denied)
    found = of(examine(good, address=f"127.0.0.1:{port}"), "line")
    server.close()
    assert found.grade == "problem"
    assert re.search(r"refuses 'telco' \(the certificate .* is on the deny list of this federation", found.text)


def test_a_proxy_that_opens_tls(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = authority._subject
    monkeypatch.setattr(authority, "_subject", lambda n: subject("Example Web Filter" if n.startswith("efvfl") else n))
    authority.make(tmp_path, ["server"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    def pry(link: socket.socket) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(link, server_side=True) as secure:
            secure.recv(1)

    with program(pry) as address:
        found = of(examine(good, address=address), "line")
    assert "is of 'Example Web Filter', which is no authority of a federation" in found.text
    assert "a proxy in between opens TLS" in found.advice


# What a listening doctor puts up with.


def test_files_that_differ_are_named_at_both_ends(good: Path, place: Path) -> None:
    (place / "fed.toml").write_text((place / "fed.toml").read_text().replace("batch_size = 32", "batch_size = 64"))
    with waiting(good) as (here, address):
        found = examine(place, address=address)
    assert "batch_size: the server has 32, telco has 64" in worst(found, "settings").text
    assert here.visits["telco"].differences == ("batch_size: the server has 32, telco has 64",)


def test_the_label_holder_says_who_was_not_there(good: Path) -> None:
    found = examine(good, party="", listen=0.3, address="127.0.0.1:0")
    assert (of(found, "line").grade, of(found, "line").text) == ("warning", "telco was not here")


def ask(talk: Talk, what: bytes, count: int, times: int) -> None:
    for _ in range(times):
        talk.send(line_probe._QUESTION.pack(what, count))
        talk.take(count if what == b"d" else 1)


@pytest.mark.attack(
    by="a party",
    tries="asks a listening doctor for blocks without end, or for something unknown",
    outcome="the visit ends after 24 MiB, 64 questions or 30 seconds, and counts for nothing",
)
@pytest.mark.parametrize(
    ("what", "count", "times"), [(b"d", (4 << 20) + 1, 1), (b"d", 4 << 20, 7), (b"x", 1, 1), (b"u", 0, 65)]
)
def test_visits_are_bounded(good: Path, what: bytes, count: int, times: int) -> None:
    credentials = certificates.load(good / "certs", "telco")
    with waiting(good, seconds=1.0) as (here, address):
        host, _, port = address.rpartition(":")
        link = socket.create_connection((host, int(port)))
        with shake(link, address, credentials, [PROTOCOL], 5.0) as secure:
            talk = Talk(secure)
            assert talk.take(1) == line_probe.WELCOME
            talk.send_table({"shared": {}})
            talk.take_table()
            with pytest.raises((OSError, ProtocolError)):
                ask(talk, what, count, times + 1)
    assert not here.visits
    assert here.refused == 1


@pytest.mark.attack(
    by="a stranger",
    tries="visits a listening doctor without a certificate, with that of nobody, or as a party that trains",
    outcome="refused with the reason, shown at most 20 times; nothing is measured",
)
def test_who_may_not_visit(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good / "certs", tmp_path / "certs")
    authority.make(tmp_path / "certs", ["visitor"])
    told: list[str] = []
    with waiting(good, seconds=1.5) as (here, address):
        here.tell = told.append
        with pytest.raises(
            LineError, match="the label holder's doctor does not receive 'visitor': it shows why: no party of that name"
        ):
            visit(address, certificates.load(tmp_path / "certs", "visitor"), {})
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with suppress(ConnectionResetError):
                link.recv(1)
        with socket.create_connection((host, int(port))) as link:
            shake(link, address, certificates.load(good / "certs", "telco"), [TRAINING], 5.0).close()
    assert "'visitor' is not a party of this federation; they are telco" in told[0]
    assert "it does not speak TLS" in told[1]
    assert "it wants to train" in told[2]
    assert not here.visits
