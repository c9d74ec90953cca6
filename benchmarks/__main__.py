"""`python -m benchmarks`: print every ratio beside its target."""

from __future__ import annotations

import platform

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import codecs, step
from benchmarks.timing import Timing


def main() -> None:
    console = Console()
    table = Table(title=f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} torch threads")
    for heading in ("work", "measured", "target", "milliseconds", "spread"):
        table.add_column(heading, justify="left" if heading == "work" else "right")

    def ratio(name: str, over: Timing, under: Timing, target: float) -> None:
        measured = over.middle / under.middle
        mark = "" if measured <= target else " [red]missed[/]"
        times = f"{over.middle:.3g} / {under.middle:.3g}"
        spread = f"{max(over.spread, under.spread):.0%}"
        table.add_row(name, f"{measured:.2f}{mark}", f"{target:g}", times, spread)

    with console.status("full batch"):
        full = step.against_central(batch=0, rounds=15, inner=1)
    with console.status("batch 128"):
        small = step.against_central(batch=128, rounds=30, inner=20)
    for labels, target_full, target_small in (("private", 1.6, 3.5), ("shared", 2.2, 6.0)):
        ratio(f"full batch 60,000, {labels} labels / central SGD", full[labels], full["central"], target_full)
        ratio(f"batch 128, {labels} labels / central SGD", small[labels], small["central"], target_small)
    for labels in ("private", "shared"):
        with console.status(f"growth with N, {labels} labels"):
            grown = step.growth(labels, rounds=30, inner=20)
        ratio(f"batch 128, {labels}: 1,000,000 rows / 10,000 rows", grown["1,000,000"], grown["10,000"], 1.2)
    with console.status("codecs"):
        topk = codecs.topk_time(rounds=30)
    ratio("top-k 10 % of 960,000: encode + decode / torch.topk", topk["encode + decode"], topk["torch.topk"], 0.3)
    for name, measured, target, unit in codecs.sizes():
        mark = "" if measured <= target else " [red]missed[/]"
        table.add_row(f"{name}: {unit}", f"{measured:.4g}{mark}", f"{target:g}", "", "")
    for name, measured in codecs.entropies():
        table.add_row(f"{name} / entropy", f"{measured:.3f}", "", "", "")
    console.print(table)


if __name__ == "__main__":
    main()
