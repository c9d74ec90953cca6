"""`python -m efvfl`."""

import sys

from efvfl.cli.main import main

sys.exit(main())
