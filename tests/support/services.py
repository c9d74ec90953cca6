"""A prediction service over real HTTPS, with parties that come and go in threads of this process."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import networks
import numpy as np
import torch
from networks import Network, process_of
from torch import Tensor
from warm_processes import PATIENT

from efvfl import Federation
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.network.identity import authority, certificates
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.predict import http_app, http_server
from efvfl.network.predict.batcher import PredictionBatcher, ServiceSettings
from efvfl.network.predict.places import PlaceLimits
from efvfl.network.predict.renewed_tls import RenewedTls
from efvfl.network.predict.request_log import RequestLog

FILE = """
epochs = 1
batch_size = 48
data = { subset = 120, validation = 0.03, test = 0.02 }
model = { width = 4 }
observe_gradient = false
"""
TOKEN = "t" * 40
BRIEF = 0.3  # seconds for a request that shall not be answered
PATIENTLY = ServiceSettings(timeout=PATIENT)
NAMES = ["top-left", "top-right", "bottom-left", "bottom-right"]
AWAY = "top-right"


class Trained:
    """A federation after its training: its folders, and the same network in one process."""

    def __init__(self, folder: Path, label_holder: str = "", subsets: str = "off") -> None:
        self.folder = folder
        self.file = folder / "fed.toml"
        self.file.write_text(f'label_holder = "{label_holder}"\n{FILE}agreement = {{ subsets = "{subsets}" }}\n')
        self.config: RunConfig = configs.load(self.file)
        self.whole: Federation = networks.federation(self.config)
        list(self.whole.train(1, gradient=False))
        networks.networked(self.config, folder)
        authority.make(folder / "certs", [certificates.SERVER, *NAMES, "scoring"], hosts=["127.0.0.1"])
        self.ids = [
            f"{s}:{n}" for s in ("train", "validation", "test") for n in range(len(self.whole.splits[s].labels))
        ]

    def columns(self, ids: list[str]) -> list[Tensor]:
        places = [(split, int(number)) for split, _, number in (i.partition(":") for i in ids)]
        return [torch.stack([self.whole.splits[s].features[k][n] for s, n in places]) for k in range(len(NAMES))]

    def shares(self, ids: list[str], present: list[str] | None = None) -> Tensor:
        return torch.softmax(self.whole.predict(self.columns(ids), present).double(), dim=1)


class Running:
    """A service in threads, and clients of it."""

    def __init__(
        self,
        trained: Trained,
        folder: Path,
        settings: ServiceSettings,
        names: frozenset[str] = frozenset(),
        limits: PlaceLimits | None = None,
    ) -> None:
        self.trained = trained
        self.network = Network(trained.config, folder, lives=2)
        self.network.revive = False
        serving = self.network.serving
        assert serving is not None
        assert serving.finished
        self.asked: list[tuple[str, list[str]]] = []  # questions by party; one that is repeated on its way counts once
        self._numbers: set[tuple[str, int]] = set()  # of these
        serving.requests.hooks = replace(serving.requests.hooks, on_frame=self._on_frame)
        self.batcher = PredictionBatcher(serving, settings)
        self.certs = trained.folder / "certs"
        server = self.certs / "server"
        self.access = http_app.AccessControl(TOKEN, names)
        tls = RenewedTls(
            server.with_suffix(".crt"), server.with_suffix(".key"), self.certs / "ca.crt" if names else None
        )
        self.log = RequestLog(folder)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listening.getsockname()[1]}"
        self.worker = threading.Thread(target=self.batcher.run)
        app = http_app.make_app(self.batcher, self.access, self.log)
        self.server = http_server.HttpServer(app, tls, 5.0, limits or PlaceLimits())
        self.server.answer_seconds = 2 * PATIENT
        self.web = threading.Thread(target=http_server.serve, args=(self.server, self.listening))
        self.worker.start()
        self.web.start()
        self.clients: list[httpx.Client] = []

    def _on_frame(self, name: str, direction: str, frame: Frame) -> None:
        if frame.kind == FrameKind.ASK and (name, frame.number) not in self._numbers:
            self._numbers.add((name, frame.number))
            self.asked.append((name, json.loads(frame.body).get("ids", [])))

    def client(self, token: str = TOKEN, certificate: str = "") -> httpx.Client:
        context = ssl.create_default_context(cafile=self.certs / "ca.crt")
        if certificate:
            context.load_cert_chain(self.certs / f"{certificate}.crt", self.certs / f"{certificate}.key")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.clients.append(httpx.Client(base_url=self.url, verify=context, headers=headers, timeout=PATIENT))
        return self.clients[-1]

    def predict(self, ids: list[str]) -> httpx.Response:
        return self.client().post("/predict", json={"ids": ids})

    def until(self, done: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENT
        while not done():
            assert time.monotonic() < ends
            time.sleep(0.01)

    def decline(self, ids: list[str]) -> list[str]:
        """Ask for what cannot be answered, with little time for it; return who is said to be missing."""
        before = self.batcher.settings
        self.batcher.settings = replace(before, timeout=BRIEF)
        answer = error(self.predict(ids), 503)
        self.batcher.settings = before
        assert f"{', '.join(answer['missing'])} did not answer in time" in answer["error"]
        return list(answer["missing"])

    def health(self) -> Any:
        return self.client(token="").get("/health").json()

    def join(self, *names: str) -> None:
        for name in names or NAMES:
            self.network.join(name)
        self.until(lambda: all(self.health()["parties"][name] for name in names or NAMES))

    def leave(self, *names: str) -> None:
        for name in names or NAMES:
            self.network.joinings[name].stopping.set()
            self.network.futures[name].exception(PATIENT)
            process_of(self.network.joinings[name]).message_log.close()
        self.until(lambda: not any(self.health()["parties"][name] for name in names or NAMES))

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.should_exit = True
        self.web.join()
        self.batcher.stop()
        self.worker.join()
        self.log.close()
        self.network.__exit__()
        assert self.batcher.error is None


def check(response: httpx.Response, trained: Trained, ids: list[str]) -> None:
    """The answer is what the network in one process says of these rows."""
    assert response.status_code == 200, response.text
    rows, shares = response.json()["predictions"], trained.shares(ids)
    assert [row["id"] for row in rows] == ids
    assert [row["prediction"] for row in rows] == shares.argmax(dim=1).tolist()
    np.testing.assert_allclose([row["probabilities"] for row in rows], shares.numpy(), atol=1e-6)
    assert not any("fallback" in row for row in rows)


def error(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    return response.json()
