"""Parts of a self-contained HTML page for light and dark screens: tables, charts drawn by the script within, folds."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from efvfl.training.record import finite_or_null

ASSETS = Path(__file__).parent / "assets"  # of reports and of the dashboard
LONG = 12  # rows of a table that is folded

Chart = Mapping[str, Any]  # what assets/chart.js draws: title, series with x and y, labels of axes


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 2) -> str:
    """Return a table; the first `texts` columns, one to three, are aligned as text, the others as numbers."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    whole = f"<table class='t{texts}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide'>{whole}</div>"


def folded_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 2) -> str:
    """Return a table under its title; a long one is folded."""
    inner = table(headings, rows, texts)
    return fold(title, inner) if len(rows) > LONG else f"<h3>{escape(title)}</h3>{inner}"


def fold(title: str, inner: str) -> str:
    """Return a part of a page that shows its title until it is opened."""
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def tiles(values: Mapping[str, str]) -> str:
    """Return a row of large values, each above what it is."""
    parts = (
        f"<div class='tile'><b>{escape(value)}</b><span>{escape(what)}</span></div>" for what, value in values.items()
    )
    return f"<div class='tiles'>{''.join(parts)}</div>"


class Charts:
    """The charts of one page, in the order in which they are placed."""

    def __init__(self) -> None:
        """A page without charts."""
        self.specs: list[Chart] = []

    def place(self, *specs: Chart) -> str:
        """Return where charts stand, side by side as far as there is room."""
        first = len(self.specs)
        self.specs += specs
        figures = (f"<figure class='chart' id='chart-{first + n}'></figure>" for n in range(len(specs)))
        return f"<div class='charts'>{''.join(figures)}</div>" if specs else ""

    def data(self) -> str:
        """Return what the script draws them from; nothing in it can end the element that it stands in."""
        text = json.dumps(finite_or_null(self.specs), allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return a file that all pages share."""
    return (ASSETS / name).read_text(encoding="utf-8")


def page(title: str, parts: Iterable[str], charts: Charts | None = None) -> str:
    """Return the page, which loads no other file and runs no script but the one that draws its charts."""
    script = asset("chart.js") if charts and charts.specs else ""
    allowed = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" if script else "'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{asset('style.css')}</style>"
    )
    end = ""
    if charts and script:
        end = "<noscript><p>The curves of this page are drawn by a script, which is switched off.</p></noscript>"
        end += f'<script id="charts" type="application/json">{charts.data()}</script><script>{script}</script>'
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}{end}</body></html>\n"
