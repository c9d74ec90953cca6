"""What attacks found, for people: a table on the terminal, and a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.runs.attacks.bench import SAVED
from efvfl.runs.attacks.catalogue import About, AttackKind
from efvfl.runs.plots import COLOURS, INK, SOFT, tidy
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.runs.attacks.of_run import AttackReport

TITLES: Mapping[About, str] = {
    "labels": "labels, told by {party}: AUC (0.5 is chance, 1 is all of them)",
    "columns": "columns of {party}, told by the server: error that is left (1 is guessing means, 0 is all of them)",
}
OF_A_FOLDER = (
    "Of all that was sent, a folder has what is remembered of each row at the end: attackers had that, and no more."
)
SPANS: Mapping[About, tuple[float, float]] = {"labels": (0.4, 1.0), "columns": (0.0, 1.3)}  # of the picture
NOTE = (
    "Attacks are measured against the truth, with the best of an attack's ways. That none of these succeeds is no "
    "proof that none does: only noise with an epsilon promises that."
)


def show(report: AttackReport, console: Console) -> None:
    """Print a table for labels and one for columns, what each attacker knows, and what the models are worth."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    for about, title in TITLES.items():
        kinds = [kind for kind in report.kinds if kind.about == about]
        if not kinds:
            continue
        table = Table(title=title.format(party=report.runs[0].party), title_justify="left", box=SIMPLE_HEAD)
        table.add_column("attack", no_wrap=True)
        for run in report.runs:
            table.add_column(run.name, justify="right", no_wrap=True)
        table.add_column("the attacker has")
        for kind in kinds:
            cells = [_cell(run.outcomes.get(kind.name, "")) for run in report.runs]
            table.add_row(f"{kind.name}{' (baseline)' * kind.baseline}", *cells, _remark(report, kind))
        console.print(table)
    for run in report.runs:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in run.scores.items())
        console.print(f"{run.name}: {scores or 'no held-out rows'}", soft_wrap=True, highlight=False, markup=False)
    if report.runs[0].name == SAVED:
        console.print(OF_A_FOLDER, soft_wrap=True, highlight=False, markup=False)
    known = (
        f"Known to attackers: {report.attacker.known} labels of each class, columns of {report.attacker.shadow} rows."
    )
    console.print(f"{known} {NOTE}", soft_wrap=True, highlight=False, markup=False)


def _cell(outcome: float | str) -> str:
    return f"{outcome:.3f}" if isinstance(outcome, float) else "-"


def _remark(report: AttackReport, kind: AttackKind) -> str:
    reasons = [found for run in report.runs if isinstance(found := run.outcomes.get(kind.name, 0.0), str)]
    return f"does not apply: {reasons[0]}" if reasons else kind.knows


def draw(path: Path, report: AttackReport) -> None:
    """Draw bars: how well labels are told, and how much is left of columns, by attack and run."""
    panels = {about: [kind for kind in report.kinds if kind.about == about] for about in TITLES}
    names = [run.name for run in report.runs]
    found = {
        about: {kind.name: [run.outcomes.get(kind.name, "") for run in report.runs] for kind in kinds}
        for about, kinds in panels.items()
        if kinds
    }
    draw_bars(path, names, {about: _numbers(parts) for about, parts in found.items()}, report.runs[0].party)


Bars = Mapping[str, Sequence[float]]  # by attack, a number for each run


def _numbers(parts: Mapping[str, Sequence[float | str]]) -> Bars:
    """Return the attacks that apply to some run; NaN where one does not."""
    found = {name: [v if isinstance(v, float) else float("nan") for v in values] for name, values in parts.items()}
    return {name: values for name, values in found.items() if any(map(isfinite, values))}


def draw_bars(path: Path, names: Sequence[str], found: Mapping[About, Bars], party: str) -> None:
    """Draw a panel for each of labels and columns: a group of bars for each attack, a bar for each run."""
    with optional("plots", "a picture of attacks"):
        from matplotlib.figure import Figure

    rows = max((len(bars) for bars in found.values()), default=1)
    figure = Figure(figsize=(11, 1.6 + 0.22 * rows * (len(names) + 1)), layout="constrained")
    palette = [*reversed(COLOURS.values()), "#7a4fb5", "#a07d14", "#b03060", "#4c8c2b"]
    titles: Mapping[About, tuple[str, float]] = {
        "labels": (f"AUC of labels, by {party}; dashed: chance", 0.5),
        "columns": (f"error of {party}'s columns; dashed: their means", 1.0),
    }
    drawn = {about: bars for about, bars in found.items() if bars}
    for axes, (about, bars) in zip(
        figure.subplots(1, max(1, len(drawn)), squeeze=False)[0], drawn.items(), strict=False
    ):
        title, nothing = titles[about]
        for place, name in enumerate(names):
            heights = [values[place] for values in bars.values()]
            where = [-(k * (len(names) + 1) + place) for k in range(len(bars))]
            axes.barh(where, heights, height=0.8, label=name, color=palette[place % len(palette)])
        middles = [-(k * (len(names) + 1) + (len(names) - 1) / 2) for k in range(len(bars))]
        axes.set_yticks(middles, list(bars))
        axes.axvline(nothing, color=INK, linewidth=1, linestyle="--")
        axes.set(xlabel=title, xlim=SPANS[about])
        tidy(axes)
        axes.xaxis.label.set_color(SOFT)
    if len(names) > 1 and drawn:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=144)
    write_atomically(path, image.getvalue())
