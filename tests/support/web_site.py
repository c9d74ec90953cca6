"""A web site within the test, which misbehaves as it is told, and a stand-in for npm."""

import base64
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

CONTENT = os.urandom(1_000_000)


class Site:
    """What the server has and how it misbehaves."""

    def __init__(self) -> None:
        self.files = {"/data.bin": CONTENT}
        self.ranges = True  # whether it knows them
        self.lengths = True  # whether it says how much will come
        self.cuts: list[int] = []  # bytes after which each of the next answers breaks off
        self.asked: list[tuple[str, str | None]] = []  # paths and ranges
        self.url = ""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    shared = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            shared.asked.append((self.path, wanted))
            if self.path not in shared.files:
                return self.send_error(404)
            body = shared.files[self.path]
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and shared.ranges else 0
            if start >= len(body):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if shared.lengths:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            stop = start + shared.cuts.pop(0) if shared.cuts else len(body)
            self.wfile.write(body[start:stop])

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        shared.url = f"http://127.0.0.1:{server.server_port}"
        yield shared
        server.shutdown()
        thread.join()


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def archive(path: Path, content: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def integrity(path: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
