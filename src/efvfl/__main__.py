"""`python -m efvfl`."""

import sys

from efvfl.cli import main

sys.exit(main())
