"""Where things lie in a checkout."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SUPPORT = Path(__file__).parent
