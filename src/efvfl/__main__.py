"""`python -m efvfl`."""

import os
import sys
from pathlib import Path

# With -m, Python looks for every module in the current folder first: a file there that has the name of a library, or of
# an optional module that a library tries to import, would be run. It stays if this package itself is found there.
if sys.path[0] in ("", os.getcwd()) and Path(sys.path[0]).resolve() != Path(__file__).resolve().parent.parent:
    del sys.path[0]

from efvfl.cli.main import main

sys.exit(main())
