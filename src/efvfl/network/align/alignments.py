"""The lists of shared rows in a participant's folder, by number: aligning again adds one and changes none.

The label holder gives a list its number, the same at all participants. A trained model goes on with the list that it
began with, whatever was aligned since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from efvfl.errors import DataError, ProtocolError
from efvfl.network.align.aligned_rows import Aligned

FOLDER: Final = "alignments"  # in a participant's folder: NUMBER.parquet
BARE: Final = "aligned.parquet"  # where release 0.2 kept its only list, which counts as the first one


class Alignments:
    """The lists in one folder."""

    def __init__(self, folder: Path) -> None:
        """Keep them in a participant's folder."""
        self.folder = folder

    def numbers(self) -> list[int]:
        """Return the numbers of all lists, in order."""
        names = (path.stem for path in (self.folder / FOLDER).glob("*.parquet"))
        found = {int(name) for name in names if name.isascii() and name.isdecimal()}
        return sorted(found | ({1} if (self.folder / BARE).exists() else set()))

    @property
    def newest(self) -> int:
        """The number of the last list; 0 if there is none."""
        return max(self.numbers(), default=0)

    def path(self, number: int) -> Path:
        """Return where a list is, or will be."""
        bare, path = self.folder / BARE, self.folder / FOLDER / f"{number}.parquet"
        return bare if number == 1 and bare.exists() and not path.exists() else path

    def load(self, number: int) -> Aligned:
        """Return a list."""
        return Aligned.load(self.path(number))

    def before(self, number: int) -> int:
        """Return the number of the list before this one; 0 if there is none."""
        return max((other for other in self.numbers() if other < number), default=0)

    def holds(self, number: int, aligned: Aligned) -> bool:
        """Whether the list of this number is this one."""
        try:
            return number in self.numbers() and self.load(number) == aligned
        except DataError:  # a damaged one is another one
            return False

    def save(self, number: int, aligned: Aligned) -> bool:
        """Write a list, and return whether it is a new one; none is ever replaced, because a model may need it."""
        if self.holds(number, aligned):
            return False
        if number <= self.newest:
            raise ProtocolError(
                f"expected a number above {self.newest} for a new list of shared rows, got {number}, which "
                "may be that of an older one: the label holder does not follow the protocol. Ask its people."
            )
        aligned.save(self.path(number))
        return True
