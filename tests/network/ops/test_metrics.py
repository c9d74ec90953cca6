"""What Prometheus is told: parsed by its own parser, asked for over HTTP, and drawn by the example's dashboard."""

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from paths import ROOT
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from efvfl.errors import ConfigError
from efvfl.network.ops.metrics import MetricsEndpoint, RequestMetrics, render
from efvfl.network.ops.status import sentence

MONITORING = ROOT / "examples" / "monitoring"
SERVER: dict[str, Any] = {
    "step": 12,
    "steps": 80,
    "loss": 0.25,
    "bytes_out": 1000,
    "bytes_in": 3000,
    "compute": 1.5,
    "codec": 0.5,
    "waiting": 8.0,
    "missing": {'so"uth\n': 4.5},
    "parties": ["north", 'so"uth\n'],
    "epoch": 3,
    "scores": {"validation": {"loss": 0.3, "accuracy": 0.9}, "test": {}},
}
PARTY = {key: SERVER[key] for key in ("step", "bytes_out", "bytes_in", "compute", "codec", "waiting")}


def parsed(text: bytes | str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text if isinstance(text, str) else text.decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_what_a_label_holder_tells() -> None:
    assert "12 of 80" in sentence(SERVER)  # the same state as the status line's
    found = parsed(render({"": SERVER}))
    assert value(found, "efvfl_step") == 12
    assert value(found, "efvfl_steps") == 80
    assert value(found, "efvfl_epoch") == 3
    assert value(found, "efvfl_loss") == 0.25
    assert value(found, "efvfl_bytes_total", direction="out") == 1000
    assert value(found, "efvfl_bytes_total", direction="in") == 3000
    assert value(found, "efvfl_seconds_total", kind="waiting") == 8.0
    assert value(found, "efvfl_missing_seconds", party="north") == 0.0
    assert value(found, "efvfl_missing_seconds", party='so"uth\n') == 4.5  # nobody writes lines of their own by a name
    assert value(found, "efvfl_score", split="validation", metric="accuracy") == 0.9
    assert len(found) == 13


def test_a_party_tells_of_itself_alone() -> None:
    found = parsed(render({"": PARTY | {"connected": False}}))
    assert value(found, "efvfl_connected") == 0
    assert value(parsed(render({"": PARTY | {"connected": True}})), "efvfl_connected") == 1
    assert {name for name, _ in found} == {"efvfl_connected", "efvfl_step", "efvfl_bytes_total", "efvfl_seconds_total"}
    assert not any(key in {"party", "split"} for _, labels in found for key, _ in labels)


def test_several_runs_are_told_apart_by_a_label() -> None:
    found = parsed(render({"one": PARTY, "two": PARTY | {"step": 5}}))
    assert value(found, "efvfl_step", run="one") == 12
    assert value(found, "efvfl_step", run="two") == 5
    assert value(found, "efvfl_bytes_total", run="two", direction="in") == 3000


def test_before_the_first_step_there_is_no_loss() -> None:
    assert not any(name == "efvfl_loss" for name, _ in parsed(render({"": SERVER | {"loss": None}})))


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    made = MetricsEndpoint("0", lambda: PARTY)
    yield made
    made.close()


def test_it_is_asked_over_http_on_loopback(endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint.url == f"http://127.0.0.1:{endpoint.port}/metrics"
    with httpx.Client(trust_env=False) as client:
        assert parsed(client.get(endpoint.url).text) == {}  # nothing is published yet
        endpoint()
        counts = RequestMetrics(endpoint.registry)
        counts.observe(200, 0.03, 5, 1)
        counts.observe(401, 0.001, 0, 0)
        response = client.get(endpoint.url)
        assert response.headers["content-type"].startswith("text/plain; version=")
        found = parsed(response.text)
        assert value(found, "efvfl_step") == 12
        assert value(found, "efvfl_updated_timestamp_seconds") > 1e9
        assert value(found, "efvfl_requests_total", status="200") == 1
        assert value(found, "efvfl_requests_total", status="401") == 1
        assert value(found, "efvfl_requested_ids_total", known="no") == 1
        assert value(found, "efvfl_requested_ids_total", known="yes") == 4
        assert value(found, "efvfl_request_seconds_bucket", le="0.025") == 1
        assert value(found, "efvfl_request_seconds_bucket", le="0.05") == 2
        assert client.get(endpoint.url.replace("metrics", "")).status_code == 404
        assert client.post(endpoint.url).status_code == 501


def test_a_state_is_published_once_a_second_at_most(endpoint: MetricsEndpoint) -> None:
    asked = []
    endpoint.state = lambda: asked.append(1) or PARTY  # type: ignore[func-returns-value]
    for _ in range(50):
        endpoint()
    assert len(asked) == 1


def test_a_client_that_says_nothing_is_not_waited_for(
    endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint._server.RequestHandlerClass, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", endpoint.port)), httpx.Client(trust_env=False, timeout=60) as client:
        assert client.get(endpoint.url).status_code == 200


@pytest.mark.parametrize("address", ["127.0.0.1:x", "", "127.0.0.1:99999", "203.0.113.1:0"])
def test_an_address_that_cannot_be(address: str) -> None:
    with pytest.raises(ConfigError, match="--metrics: cannot listen on"):
        MetricsEndpoint(address, lambda: PARTY)


def test_the_dashboard_shows_metrics_that_exist() -> None:
    endpoint = MetricsEndpoint("0", lambda: SERVER | {"connected": True})
    try:
        endpoint.publish()
        RequestMetrics(endpoint.registry).observe(200, 0.1, 1, 1)
        known = {name for name, _ in parsed(generate_latest(endpoint.registry))}
    finally:
        endpoint.close()
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [entry["query"] for entry in dashboard["templating"]["list"] if entry["type"] == "query"]
    assert len(queries) > 10
    shown = {name for query in queries for name in re.findall(r"\befvfl_\w+", query)}
    assert shown <= known
    helpers = {"efvfl_epoch", "efvfl_requested_ids_total", "efvfl_request_seconds_count", "efvfl_request_seconds_sum"}
    assert known - shown == helpers  # every other metric is drawn
    for query in queries:
        assert query.count("(") == query.count(")")
        assert query.count("{") == query.count("}")
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in dashboard["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_example_scrapes_what_the_commands_open() -> None:
    text = (MONITORING / "prometheus.yml").read_text()
    jobs = yaml.safe_load(text)["scrape_configs"]
    targets = [target for job in jobs for entry in job["static_configs"] for target in entry["targets"]]
    assert targets == [f"127.0.0.1:{port}" for port in re.findall(r"--metrics (\d+)", text)]
