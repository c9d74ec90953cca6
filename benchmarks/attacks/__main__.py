"""Train, attack and keep what was found in benchmarks/results/attacks.json. It needs EFVFL_DATA (credit and mnist).

    python -m benchmarks.attacks            # what the file does not have yet
    python -m benchmarks.attacks pictures   # reconstructed halves of images, docs/results/attacks.png

The tables of docs/privacy.md are made from the file by `python -m tools.privacy`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.attacks import jobs, pictures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic", nargs="?", default="attacks", choices=("attacks", "pictures"))
    options = parser.parse_args(arguments)
    if options.topic == "pictures":
        pictures.draw()
    else:
        jobs.work()


if __name__ == "__main__":
    main()
