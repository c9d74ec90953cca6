"""The documentation as a site: it builds without a warning, has every public name, and works in a browser offline."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, Browser
from paths import ROOT

from efvfl import __all__ as public

pytest.importorskip("mkdocs", reason="the site needs the packages of the extra 'docs'")

# Wide tables, pictures, diagrams, long names and long lines.
WIDE = ("index", "protocol", "options", "results", "security", "reference/federations", "repository/CONTRIBUTING")

TYPE = """(({ field, key }) => { field.value = 'top-k'; field.dispatchEvent(key); })
    ({ field: document.querySelector('.md-search__input'), key: new KeyboardEvent('keyup') })"""


def build(folder: Path) -> None:
    """Build the site, as `make docs` does; a warning is an error."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def check_files(site: Path) -> None:
    """Look at what was written."""
    pages = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    reference = "".join(text for name, text in pages.items() if name.startswith("reference/"))
    headings = re.findall(r'<h2 id="efvfl\.(\w+)"', reference)
    assert sorted(headings) == sorted(public)
    for part in re.split(r'<h2 id="efvfl\.', reference)[1:]:
        assert "&gt;&gt;&gt;" in part, part.partition('"')[0]
    assert "Rows in a batch; 0: all of them" in re.sub("<.*?>", "", reference)  # the comment beside a field

    for name, text in pages.items():
        body = re.sub(r"<(pre|code|svg).*?</\1>", "", text, flags=re.S)
        assert not re.search(r"```|<p>[|-] |\]\(", body), f"{name} has Markdown that was not read"
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="([^"]*)"', text)
        assert not [address for address in loaded if re.match(r"(\w+:)?//", address)], name
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text(encoding="utf-8")), path.name

    index = pages["index.html"]
    linked = set(re.findall(r'<a href="([\w-]+)\.html" class="md-nav__link', index))
    assert linked >= {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index", "results-notes"}
    assert pages["protocol.html"].count('<svg class="sequence"') == 3


def check_in_browser(browser: Browser, site: Path) -> None:
    """Open pages from the disk, wide and narrow, light and dark, and search."""

    def opened(page: str, width: int, scheme: str) -> Any:
        browser.show(width, scheme)
        browser.open((site / f"{page}.html").as_uri())
        seen = browser.evaluate(
            "({ over: document.documentElement.scrollWidth - innerWidth, "
            "paper: getComputedStyle(document.body).backgroundColor })"
        )
        if shots := os.environ.get("SHOTS"):
            browser.picture(Path(shots) / f"site-{page.replace('/', '-')}-{width}-{scheme}.png", whole=False)
        assert browser.complaints == [], page
        assert [address for address in browser.loaded if not address.startswith(("file:", "data:"))] == []
        return seen

    assert opened("index", 1280, "light")["paper"] != opened("index", 1280, "dark")["paper"]
    assert "A first federation" in browser.evaluate("document.querySelector('.md-nav--primary').innerText")
    browser.evaluate("document.querySelector('#__search').click()")
    found = "Boolean(document.querySelector('.md-search-result__item'))"
    browser.wait(f"{TYPE}, {found}")  # once the index is read somebody listens
    assert "/reference/compressors.html" in browser.evaluate("document.querySelector('.md-search-result__link').href")
    assert "TopK" in browser.evaluate("document.querySelector('.md-search-result__item').textContent")
    if shots := os.environ.get("SHOTS"):
        browser.picture(Path(shots) / "site-search.png", whole=False)
    assert browser.complaints == []
    for page in WIDE:
        assert opened(page, 400, "light")["over"] <= 0, page
    browser.evaluate("console.error('planted')")
    browser.wait("true")
    assert browser.complaints == ["['planted']"]  # so that it would be seen


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build(site)
    check_files(site)
    if not BROWSER:
        pytest.skip("the files are as they should be, but no Chromium is installed here to open them")
    with Browser(tmp_path / "browser") as browser:
        check_in_browser(browser, site)
