"""The report and the dashboard in a real browser, wide and narrow, light and dark, while a run goes on and is killed.

SHOTS=FOLDER leaves pictures of what the browser shows, for people to look at.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import BROWSER, Browser
from warm_processes import Process

from efvfl.runs import report
from efvfl.runs.run import train

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not BROWSER, reason="no Chromium is installed here")]

SCREENS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
RUN = """
epochs = {epochs}
batch_size = 50
loss = "binary_cross_entropy"
label_holder = "south"
data = {{ name = "npz", path = "rows.npz", validation = 0.2, test = 0.2 }}
model = {{ width = 4 }}
"""

# Texts of one drawing that lie on each other, letterings of other sizes than the one there is, and tables that are cut.
LOOK = """(() => {
  const found = { charts: 0, curves: 0, collisions: [], sizes: [], cut: [] };
  for (const svg of document.querySelectorAll("svg")) {
    found.charts++;
    found.curves += [...svg.querySelectorAll("path.curve, rect.bar")].filter((each) => each.getBBox().width > 0).length;
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent);
    const boxes = texts.map((text) => text.getBoundingClientRect());
    texts.forEach((text, n) => {
      found.sizes.push(getComputedStyle(text).fontSize);
      if (boxes[n].left < -1 || boxes[n].right > innerWidth + 1) found.cut.push(text.textContent);
      for (let m = 0; m < n; m++) {
        const beside = boxes[n].right <= boxes[m].left || boxes[m].right <= boxes[n].left;
        const below = boxes[n].bottom - 3 <= boxes[m].top || boxes[m].bottom - 3 <= boxes[n].top;
        if (!beside && !below) found.collisions.push([text.textContent, texts[m].textContent]);
      }
    });
  }
  for (const box of document.querySelectorAll(".wide"))
    if (!box.closest("details:not([open])") && box.scrollWidth > box.clientWidth) found.cut.push(box.textContent);
  found.sizes = [...new Set(found.sizes)];
  found.overflow = document.documentElement.scrollWidth - innerWidth;
  found.paper = getComputedStyle(document.body).backgroundColor;
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two parties, and two run files: one that ends, and one that does not."""
    path = tmp_path_factory.mktemp("pages")
    chance = np.random.default_rng(1)
    x: dict[str, Any] = {name: chance.normal(size=(300, 4)).astype(np.float32) for name in ("north & <b>", "south")}
    y = (x["north & <b>"][:, 0] + x["south"][:, 0] > 0).astype(np.float32)
    np.savez(path / "rows.npz", y=y, **x)
    for name, epochs in (("short", 12), ("long", 1_000_000)):
        (path / f"{name}.toml").write_text(RUN.format(epochs=epochs))
    return path


def check(browser: Browser, name: str, curves: int) -> None:
    """Look at what is open on every screen."""
    papers = {}
    for width, scheme in SCREENS:
        browser.show(width, scheme)
        browser.wait(f"innerWidth === {width} && {LOOK}.curves >= {curves}")
        browser.wait("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
        seen = browser.evaluate(LOOK)
        where = f"{name} at {width} px, {scheme}"
        assert seen["overflow"] <= 0, where
        assert (seen["collisions"], seen["cut"]) == ([], []), where
        assert seen["sizes"] == ["12px"], where
        papers[scheme] = seen["paper"]
        if shots := os.environ.get("SHOTS"):
            browser.picture(Path(shots) / f"{name}-{width}-{scheme}.png")
    assert papers["light"] != papers["dark"]
    assert browser.complaints == []


def point_at_a_curve(browser: Browser) -> str:
    """Move the pointer over the first chart, and return what is shown there."""
    browser.evaluate("document.querySelector('.plot svg').scrollIntoView({ block: 'center' })")
    middle = "(({ x, y, width, height }) => [x + width / 2, y + height / 2])"
    box = browser.evaluate(f"{middle}(document.querySelector('.plot svg').getBoundingClientRect())")
    browser.move(*box)
    return str(browser.wait("(document.querySelector('.tip:not([hidden])') || {}).textContent"))


def test_the_report(browser: Browser, folder: Path) -> None:
    train(folder / "short.toml", folder / "short", alone=True)
    path = report.write(folder / "short")
    browser.show(*SCREENS[0])
    browser.open(path.as_uri())
    assert browser.loaded == [path.as_uri()]
    assert "label holder alone has" in browser.evaluate("document.querySelector('.headline').textContent")
    assert point_at_a_curve(browser).startswith("epoch ")
    check(browser, "report", curves=12)
    browser.evaluate("console.error('planted')")
    browser.wait("true")
    assert browser.complaints == ["['planted']"]  # so that it would be seen


def test_what_a_party_without_labels_sees(browser: Browser, folder: Path) -> None:
    party = folder / "telco"
    party.mkdir()
    frames = {"report": 300_000, "answer-blinded": 459_210, "evaluation": 70_320, "hello": 1_460}
    line: dict[str, Any] = {"time": 1.0, "peer": "server", "direction": "out", "number": 1, "step": 1, "payload": 1}
    lines = [json.dumps(line | {"kind": kind, "frame": size}) for kind, size in frames.items()]
    (party / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    status: dict[str, Any] = {"stage": "finished", "name": "telco", "command": "join", "time": 9e8, "step": 40}
    status |= {"connected": False, "limits": {"bytes": 0, "rows": 100_000}, "used": {"bytes": 300_000, "rows": 0}}
    status |= {"sent": {"telco": [3e5, 2e5]}, "uncompressed": {"telco": [3e6, 3e6]}, "steps": 80}
    status["seconds"] = {"compute": 3.0, "codec": 1.0, "waiting": 6.0}
    (party / "status.json").write_text(json.dumps(status))
    page = Process(folder, "dashboard", str(party), "--listen", "127.0.0.1:0")
    try:
        browser.show(*SCREENS[0])
        browser.open(page.told("Dashboard: "))
        browser.wait("document.getElementById('name').textContent === 'telco (efvfl join)'")
        check(browser, "party", curves=7)
        seen = str(browser.evaluate("document.body.innerText"))
        for text in ("What left the building", "the compressed change", "100,000", "waiting for others", "12 × fewer"):
            assert text in seen, text
        assert "loss" not in seen.lower()
    finally:
        page.kill().end()


def test_the_dashboard_while_a_run_goes_on_and_when_it_is_killed(browser: Browser, folder: Path) -> None:
    page = Process(folder, "dashboard", str(folder), "--listen", "127.0.0.1:0")
    run = Process(folder, "run", "long.toml", "--out", str(folder / "long"), "--no-alone")
    step = "Number(document.querySelector('.tile b').textContent.replaceAll(',', ''))"
    try:
        address = page.told("Dashboard: ")
        browser.show(*SCREENS[0])
        browser.open(address)
        assert browser.wait("document.getElementById('stage').textContent !== 'connecting'")
        browser.open(f"{address}?run=long")
        browser.wait(f"document.querySelectorAll('path.curve').length && {step} > 0")
        assert browser.evaluate("document.getElementById('stage').textContent") == "running"
        before, curve = browser.evaluate(step), browser.evaluate("document.querySelector('path.curve').outerHTML")
        browser.wait(f"{step} > {before} && document.querySelector('path.curve').outerHTML !== {json.dumps(curve)}")
        check(browser, "dashboard", curves=8)
        run.kill()
        browser.wait("document.getElementById('stage').textContent === 'killed'")
        assert "was killed" in browser.evaluate("document.getElementById('say').textContent")
        check(browser, "killed", curves=8)
        assert all(each.startswith(address) for each in browser.loaded)
        page.kill()
        browser.wait("document.getElementById('stage').textContent === 'page out of date'")
    finally:
        run.kill().end()
        page.kill().end()
