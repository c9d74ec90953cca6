"""A self-contained HTML page about an experiment: tables, figures and settings."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape

from efvfl.experiments import figures, tables
from efvfl.experiments.experiment_file import Sweep
from efvfl.experiments.tables import Results
from efvfl.runs import html


def page(sweep: Sweep, results: Results, comparable: bool = True) -> str:
    """Return the page, which loads no other files."""
    parts = [f"<h1>{escape(sweep.title)}</h1><p>{escape(sweep.about)}</p>"]
    shown = tables.measure(sweep, results)
    heading = f"<h2>{shown.title.capitalize()}{shown.unit}</h2>"
    parts.append(heading + html.table(*tables.rows_of(sweep, results, comparable)))
    parts.append(
        "<p>Mean ± standard deviation over seeds, if there are several. * more than two of its deviations away.</p>"
    )
    parts.append("<h2>Sent in one run</h2>" + html.table(*tables.communication(sweep, results)))
    if sweep.error:
        heading = f"Sent until the mean of the squared gradient is at most {sweep.error:g} (Table 1, measured)"
        parts.append(f"<h2>{heading}</h2>" + html.table(*tables.totals(sweep, results)))
    for figure in sweep.figures:
        for axis, title in figures.axes_of(figure).items():
            drawing = figures.image(figures.draw(sweep, figure, results, axis), "svg").decode()
            parts.append(f"<h2>{escape(figure.name)}: {title}</h2>" + drawing[drawing.index("<svg") :])
    settings = {cell.name: asdict(cell.config) for cell in sweep.cells}
    parts.append("<h2>Settings</h2>")
    for name, config in settings.items():
        text = escape(json.dumps(config, indent=1))
        parts.append(f"<details><summary>{escape(name)}</summary><pre>{text}</pre></details>")
    return html.page(sweep.title, parts)
