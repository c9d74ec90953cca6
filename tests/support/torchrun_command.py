"""`efvfl` as one of torchrun's workers, started as `efvfl` itself starts."""

import sys

from efvfl.cli import quick_start

if __name__ == "__main__":
    quick_start.without_compiler()
    import worker_scenes

    sys.exit(worker_scenes.command())
