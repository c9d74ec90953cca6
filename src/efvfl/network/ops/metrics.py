"""Metrics for Prometheus: what the status line shows, and what the prediction service counts, as its text format.

The text is written by Prometheus's own client library, which brings nothing else with it. Metrics tell numbers: no ids,
no labels of rows, and names of parties only at the label holder, whose state alone has them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple, Protocol

from efvfl.errors import ConfigError
from efvfl.util.extras import optional

with optional("metrics", "metrics for Prometheus"):
    from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
INTERVAL = 1.0  # seconds between two states that are published
PATIENCE = 5.0  # seconds for a client to send its request, and to take the answer

State = Mapping[str, Any]  # what a status line shows
Sample = tuple[str, tuple[str, ...], float]  # a family's name, the values of its labels, and the number


class Family(NamedTuple):
    """One metric: what kind it is, what it means, and by what it is told apart."""

    kind: Any
    about: str
    labels: tuple[str, ...] = ()


FAMILIES = {
    "efvfl_running": Family(GaugeMetricFamily, "Whether the process is at work, as its files show."),
    "efvfl_step": Family(GaugeMetricFamily, "Steps done."),
    "efvfl_steps": Family(GaugeMetricFamily, "Steps that the run has."),
    "efvfl_epoch": Family(GaugeMetricFamily, "Epochs done."),
    "efvfl_loss": Family(GaugeMetricFamily, "Loss of the last step on surrogates."),
    "efvfl_connected": Family(GaugeMetricFamily, "Whether this party has a link to the server."),
    "efvfl_bytes": Family(CounterMetricFamily, "Bytes of frames since this process has started.", ("direction",)),
    "efvfl_seconds": Family(
        CounterMetricFamily, "Seconds since this process has started, by what they were spent on.", ("kind",)
    ),
    "efvfl_missing_seconds": Family(
        GaugeMetricFamily, "For how long a party has been missing; 0: it is here.", ("party",)
    ),
    "efvfl_score": Family(GaugeMetricFamily, "Of held-out rows at the last evaluation.", ("split", "metric")),
    "efvfl_updated_timestamp_seconds": Family(GaugeMetricFamily, "When these were noted."),
}
_PLAIN = ("running", "step", "steps", "epoch", "loss", "connected")  # numbers, or None where there is none yet


class StateCollector(Collector):
    """The metrics of states that processes have published."""

    def __init__(self, states: Callable[[], Mapping[str, State]]) -> None:
        """Collect what `states` returns by run, whenever somebody asks; a single run may have the name ""."""
        self.states = states

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that the states know."""
        states = self.states()
        run = ("run",) if any(states) else ()
        families = {name: of.kind(name, of.about, labels=[*run, *of.labels]) for name, of in FAMILIES.items()}
        for name, state in states.items():
            for family, labels, value in _samples(state):
                families[family].add_metric([name, *labels] if run else labels, value)
        yield from (family for family in families.values() if family.samples)


def _samples(state: State) -> Iterator[Sample]:
    """Yield what a state tells."""
    for key in _PLAIN:
        if state.get(key) is not None:
            yield f"efvfl_{key}", (), float(state[key])
    for direction in ("out", "in"):
        if f"bytes_{direction}" in state:
            yield "efvfl_bytes", (direction,), state[f"bytes_{direction}"]
    for kind in ("compute", "codec", "waiting"):
        if kind in state:
            yield "efvfl_seconds", (kind,), state[kind]
    if "missing" in state:
        for party, seconds in (dict.fromkeys(state.get("parties", ()), 0.0) | state["missing"]).items():
            yield "efvfl_missing_seconds", (party,), seconds
    for split, scores in state.get("scores", {}).items():
        for metric, value in scores.items():
            yield "efvfl_score", (split, metric), value
    if "updated" in state:
        yield "efvfl_updated_timestamp_seconds", (), state["updated"]


def render(states: Mapping[str, State]) -> bytes:
    """Return the text of states, such as status lines take, by run; a single one may have the name "".

    >>> print(render({"": {"step": 3, "missing": {"bank": 2.5}}}).decode().splitlines()[-1])
    efvfl_missing_seconds{party="bank"} 2.5
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(lambda: states))
    return generate_latest(registry)


class RequestObserver(Protocol):
    """Is told of every request to a service that was answered."""

    def observe(self, status: int, seconds: float, ids: int, unknown: int) -> None:
        """Note a response, how long it took, how many ids were asked for, and how many of them parties lack."""


class RequestMetrics:
    """What the prediction service counts."""

    BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self, registry: CollectorRegistry) -> None:
        """Count into a registry."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        requests = "Requests for predictions, by the status of the answer."
        self._requests = Counter("efvfl_requests", requests, ["status"], registry=registry)
        self._seconds = Histogram(
            "efvfl_request_seconds", "From a request to its answer.", buckets=self.BUCKETS, registry=registry
        )
        self._ids = Counter("efvfl_requested_ids", "Ids that were asked for.", ["known"], registry=registry)

    def observe(self, status: int, seconds: float, ids: int, unknown: int) -> None:
        """Count a request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        self._ids.labels("no").inc(unknown)
        self._ids.labels("yes").inc(max(0, ids - unknown))


class MetricsEndpoint:
    """GET /metrics on a port of its own; what it tells is published by the process, again and again."""

    def __init__(self, address: str, state: Callable[[], State]) -> None:
        """Listen on HOST:PORT, or on a port of the loopback address, and tell what `state` returned last."""
        self.state = state
        self.registry = CollectorRegistry(auto_describe=False)
        self._published: State = {}
        self._last = 0.0
        self.registry.register(StateCollector(lambda: {"": self._published}))
        host, _, port = address.rpartition(":")
        try:
            self._server = HTTPServer((host.strip("[]") or "127.0.0.1", int(port)), _handler(self.registry))
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"--metrics: cannot listen on {address!r} ({error}): expected HOST:PORT with a port that is free."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="efvfl-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """What Prometheus is to scrape."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def __call__(self) -> None:
        """Publish the state if it is time; called by the thread that changes it."""
        now = time.monotonic()
        if now - self._last >= INTERVAL:
            self._last = now
            self.publish()

    def publish(self) -> None:
        """Publish the state."""
        self._published = {**self.state(), "updated": time.time()}

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        """Answers GET /metrics, one client after the other: a slow one keeps others waiting for seconds, not longer."""

        timeout = PATIENCE
        server_version, sys_version = "efvfl", ""

        def do_GET(self) -> None:
            known = self.path == "/metrics"
            body = generate_latest(registry) if known else b"expected GET /metrics\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE if known else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log no scrape: there is one every few seconds."""

    return MetricsHandler
