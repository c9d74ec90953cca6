"""A headless Chromium, driven over its DevTools protocol through two pipes: no port, no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
TIMEOUT = 60.0  # seconds for an answer


class Browser:
    """One browser with one page at a time."""

    def __init__(self, folder: Path) -> None:
        """Start it with an empty profile in this folder."""
        (to_read, self._write), (self._read, to_write) = os.pipe(), os.pipe()
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'  # the protocol's pipes have these numbers
        command = ["bash", "-c", script, "bash", BROWSER, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session, self._ready = 0, b"", "", False
        self.complaints: list[str] = []  # errors of the page, and what it tried to load in vain
        self.loaded: list[str] = []  # addresses

    def __enter__(self) -> Browser:
        """Attach to its first page."""
        try:
            return self._attach()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _attach(self) -> Browser:
        pages = [each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        self._session = self._call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        os.close(self._write)  # it ends when nobody holds the other end of its pipe
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(TIMEOUT)
        os.close(self._read)

    def show(self, width: int, scheme: str, height: int = 900) -> None:
        """Have a screen of this width, in a light or a dark scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address: str) -> None:
        """Go to an address, and wait until all is loaded."""
        self._go("about:blank")  # else the page before may still complain
        self._go(address)

    def _go(self, address: str) -> None:
        self.complaints, self.loaded, self._ready = [], [], False
        self._call("Page.navigate", url=address)
        end = time.monotonic() + TIMEOUT
        while not self._ready:
            answer = self._next(end)
            self._note(answer.get("method", ""), answer.get("params", {}))

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", answer))
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = TIMEOUT) -> Any:
        """Wait until an expression is true, and return it; on a page that is not complete yet it is not."""
        end = time.monotonic() + seconds
        quiet = f"(() => {{ try {{ return {expression}; }} catch {{ return null; }} }})()"
        while not (value := self.evaluate(quiet)):
            assert time.monotonic() < end, f"still not true: {expression}; {self.complaints}"
            time.sleep(0.05)
        return value

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write what is to be seen as PNG; for people, tests do not read it."""
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("exception", {}).get("description", told))[:500])
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([each.get("value") for each in told["args"]])[:500])
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}"[:500])
        elif event == "Page.loadEventFired":
            self._ready = True
        elif event == "Network.requestWillBeSent":
            self.loaded.append(told["request"]["url"])
