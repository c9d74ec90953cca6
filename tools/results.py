"""Fold finished runs into the committed results, and write docs/results.md and its pictures: `make results`.

Nothing is trained: `efvfl reproduce TASK` does that, and leaves its runs in the working folder `results/TASK/`.
"""

from __future__ import annotations

from pathlib import Path

from efvfl.experiments import experiment_file, figures, results, tables
from efvfl.util.files import write_atomically

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

HEAD = """# Results

Everything on this page is generated from the record files in `results/` by `make results`; the records come from
`efvfl reproduce TASK`. Accuracy is that of the last epoch on the test half of the official test set, mean ± standard
deviation over seeds. `*` marks a cell that is more than two of the paper's standard deviations from the paper's.
"""

# Remarks about each task, and whether its numbers are comparable with the paper's.
NOTES = {
    "mnist": (True, "The paper's setting: full batch, 100 epochs, 5 seeds."),
    "mnist-private": (True, "Figure 5a: batch 1024, top-k keeping 5 %, labels shared or private (PL)."),
    "mnist-levels": (True, "The paper's runs have 2^b - 1 levels, its text says 2^b."),
    "modelnet10": (
        False,
        "**Our rendering**: 12 views of 32 x 32, a small network, 20 epochs. Not comparable with the paper's numbers; "
        "what can be compared is the order of the methods.",
    ),
    "modelnet10-local": (False, "Figures 6a and 6b on our rendering."),
    "cifar10-small": (
        False,
        "**CIFAR-10 stands in for CIFAR-100**, whose numbers of the paper stand below ours: ten classes in place of a "
        "hundred, 2,000 images in place of 50,000, a quarter of the channels. What can be compared is the order of the "
        "methods, and how far apart they are.",
    ),
    "cifar10-small-local": (
        False,
        "Figures 5b, 6c and 6d, with a smaller network; the paper shows curves of these, and no table.",
    ),
}


def section(task: str, comparable: bool, note: str) -> str:
    """Return the section about one task, or an empty string if it has no results."""
    plan = experiment_file.load(task)
    folder = ROOT / "results" / task
    if new := results.fold(plan.jobs(), folder):
        print(f"{results.compact_file(folder)}: {new} new runs")
    found = tables.collect(plan, folder)
    if not found:
        return ""
    seeds = max(len(done) for done in found.values())
    parts = [
        f"## {plan.title}\n",
        f"{plan.about} {note} Seeds done: {seeds}.\n",
        tables.markdown(plan, found, comparable),
    ]
    parts += ["\nSent in one run:\n", tables.as_markdown(*tables.communication(plan, found))]
    if plan.error:
        parts.append(f"\nTable 1, measured: sent until the mean of the squared gradient is at most {plan.error:g}:\n")
        parts.append(tables.as_markdown(*tables.totals(plan, found)))
    for figure in plan.figures:
        for axis, title in figures.axes_of(figure).items():
            name = f"{task}-{figure.name}-{axis}.png"
            write_atomically(DOCS / "results" / name, figures.image(figures.draw(plan, figure, found, axis), "png"))
            parts.append(f"\n![{figure.name}, {title}](results/{name})")
    return "\n".join([*parts, ""])


def main() -> None:
    """Write the page."""
    parts = [section(task, *note) for task, note in NOTES.items()]
    tail = (DOCS / "results-notes.md").read_text(encoding="utf-8")
    page = "\n".join([HEAD, *(part for part in parts if part), tail])
    write_atomically(DOCS / "results.md", page.encode())


if __name__ == "__main__":
    main()
