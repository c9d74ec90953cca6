"""The documents of the repository, and the blocks of code in them."""

import re
from dataclasses import dataclass

from paths import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "examples/*/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, what it says it is, and what is in it."""

    file: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        """Return its place, as the name of a case."""
        return f"{self.file}:{self.line}"


def blocks_of(file: str) -> list[Block]:
    """Return the blocks of a document."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return [Block(file, text[: m.start()].count("\n") + 1, m[2], m[3]) for m in FENCE.finditer(text)]


def blocks(file: str, language: str) -> list[str]:
    """Return the texts of a document's blocks in one language."""
    return [block.text for block in blocks_of(file) if block.language == language]
