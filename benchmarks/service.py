"""The prediction service under load: two parties, a server and clients as processes on loopback, over HTTPS.

`python -m benchmarks.service` trains a small federation with the real commands, starts `efvfl serve-predictions`, and
prints a Markdown table: requests of 100 ids each, at a steady rate and as fast as clients can.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import random
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np

ROWS, COLUMNS, IDS = 20_000, 20, 100
NAMES = ("bank", "insurer")
TARGET = 50.0  # requests a second
FILE = """
epochs = 1
batch_size = 0
loss = "binary_cross_entropy"
data = { path = "labels.npz" }
network = { address = "127.0.0.1:0" }

[[party]]
name = "bank"
data = { path = "bank.npz" }
limits = { rows = 0, train_rows = true }

[[party]]
name = "insurer"
data = { path = "insurer.npz" }
limits = { rows = 0, train_rows = true }
"""


@dataclass(frozen=True)
class Service:
    """The process, its address and its clients' credentials."""

    port: int
    token: str
    process: int

    def seconds(self) -> float:
        """Return the CPU time it has used."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write_data(folder: Path) -> None:
    chance = np.random.default_rng(0)
    ids = np.array([f"customer-{i:06d}" for i in range(ROWS)])
    for name in NAMES:
        np.savez(folder / f"{name}.npz", x=chance.normal(size=(ROWS, COLUMNS)).astype(np.float32), ids=ids)
    np.savez(folder / "labels.npz", y=chance.integers(0, 2, ROWS).astype(np.float32), ids=ids)
    (folder / "fed.toml").write_text(FILE)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "efvfl", *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def ports(process: subprocess.Popen[str], key: str) -> dict[str, int]:
    """Read a server's output until it contains its port."""
    assert process.stdout is not None
    found: dict[str, int] = {}
    while key not in found:
        line = process.stdout.readline()
        assert line, "the server ended"
        found |= {name: port for name, port in json.loads(line).items() if name in ("port", "service")}
    return found


@contextlib.contextmanager
def federation(folder: Path, key: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """Run a server and its parties; yield the server and its ports."""
    processes = [start(folder, *words, "--status", "json")]
    try:
        found = ports(processes[0], key)
        address = ("--address", f"127.0.0.1:{found['port']}", "--status", "quiet")
        processes += [start(folder, "join", "fed.toml", "--party", name, *address) for name in NAMES]
        yield processes[0], found
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=60)


@contextlib.contextmanager
def service(folder: Path, *words: str) -> Iterator[Service]:
    """Run the service, and wait until all parties are connected and it is warm."""
    command = ("serve-predictions", "fed.toml", "--listen", "127.0.0.1:0", "--quota", "0", *words)
    with federation(folder, "service", *command) as (process, found):
        token = (folder / "runs" / "fed" / "server" / "token").read_text().strip()
        made = Service(found["service"], token, process.pid)
        while True:
            connection = connect(folder, made)
            connection.request("GET", "/health")
            health = json.load(connection.getresponse())
            connection.close()
            if health["warm"] and all(health["parties"].values()):
                break
            time.sleep(0.1)
        yield made


def connect(folder: Path, made: Service) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(folder / "certs" / "ca.crt"))
    return http.client.HTTPSConnection("127.0.0.1", made.port, context=context, timeout=30)


def client(folder: Path, made: Service, number: int, rate: float, seconds: float) -> list[float]:
    """Send requests for some seconds, at a rate or without a pause; return the milliseconds of each."""
    connection, chance = connect(folder, made), random.Random(number)
    headers = {"Authorization": f"Bearer {made.token}"}
    took: list[float] = []
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        due = began + len(took) / rate if rate else now
        time.sleep(max(0.0, due - now))
        body = json.dumps({"ids": [f"customer-{chance.randrange(ROWS):06d}" for _ in range(IDS)]})
        asked = time.perf_counter()
        connection.request("POST", "/predict", body, headers)
        response = connection.getresponse()
        answer = json.load(response)
        # Delays of a late client count: otherwise waiting clients would hide a slow service.
        took.append(1e3 * (time.perf_counter() - min(asked, due)))
        assert response.status == 200, answer
        assert len(answer["predictions"]) == IDS
    connection.close()
    return took


def measure(folder: Path, made: Service, name: str, clients: int, rate: float, seconds: float) -> str:
    """Return one line of the table."""
    used = made.seconds()
    with multiprocessing.get_context("spawn").Pool(clients) as pool:
        jobs = [(folder, made, number, rate / clients, seconds) for number in range(clients)]
        took = [value for part in pool.starmap(client, jobs) for value in part]
    cores = (made.seconds() - used) / seconds
    cuts = quantiles(took, n=100)
    speed = len(took) / seconds
    return (
        f"| {name} | {clients} | {speed:,.0f} | {speed * IDS:,.0f} | {median(took):.1f} | {cuts[94]:.1f} | "
        f"{cuts[98]:.1f} | {cores:.2f} |"
    )


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_data(folder)
        start(folder, "certs", "fed.toml", "--host", "127.0.0.1").communicate()
        with federation(folder, "port", "serve", "fed.toml") as (server, _):
            server.communicate(timeout=600)
        print(f"{os.cpu_count()} cores, {len(NAMES)} parties, {ROWS:,} rows, {IDS} ids a request")
        print("| source | clients | requests/s | ids/s | median ms | 95 % | 99 % | cores of the service |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for source, words in (("cached", ("--warm",)), ("live", ("--source", "live"))):
            with service(folder, *words) as made:
                print(measure(folder, made, f"{source}, {TARGET:g} requests/s asked for", 2, TARGET, 20.0), flush=True)
                for clients in (1, 4):
                    print(measure(folder, made, f"{source}, without a pause", clients, 0.0, 10.0), flush=True)


if __name__ == "__main__":
    main()
