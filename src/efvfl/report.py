"""One self-contained HTML page for a task: the table, the plots and the settings."""

from __future__ import annotations

import html
import json
from dataclasses import asdict

from efvfl import figures, tables
from efvfl.sweep import Sweep
from efvfl.tables import Results

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #2e3440; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #d8dee9; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
svg { width: 100%; height: auto; } pre { background: #f4f5f7; padding: 1rem; overflow-x: auto; }
"""


def _table(headings: list[str], body: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in headings)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def page(sweep: Sweep, results: Results, comparable: bool = True) -> str:
    """Return the page. It loads nothing from anywhere."""
    parts = [f"<h1>{html.escape(sweep.title)}</h1><p>{html.escape(sweep.about)}</p>"]
    parts.append("<h2>Test accuracy (%)</h2>" + _table(*tables.rows_of(sweep, results, comparable)))
    parts.append("<p>Mean ± standard deviation over seeds. * more than two of the paper's deviations away.</p>")
    parts.append("<h2>Sent in one run</h2>" + _table(*tables.communication(sweep, results)))
    if sweep.error:
        heading = f"Sent until the mean of the squared gradient is at most {sweep.error:g} (Table 1, measured)"
        parts.append(f"<h2>{heading}</h2>" + _table(*tables.totals(sweep, results)))
    for figure in sweep.figures:
        for axis, title in (("paper", "communication by the paper's formula"), ("sent", "bytes really sent")):
            drawing = figures.image(figures.draw(sweep, figure, results, axis), "svg").decode()  # type: ignore[arg-type]
            parts.append(f"<h2>{html.escape(figure.name)}: {title}</h2>" + drawing[drawing.index("<svg") :])
    settings = {cell.name: asdict(cell.config) for cell in sweep.cells}
    parts.append("<h2>Settings</h2>")
    for name, config in settings.items():
        text = html.escape(json.dumps(config, indent=1))
        parts.append(f"<details><summary>{html.escape(name)}</summary><pre>{text}</pre></details>")
    head = f"<meta charset='utf-8'><title>{html.escape(sweep.title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"
