"""Writes the table of attacks in docs/security.md from the tests that try them.

    python -m tools.attacks

A test that shows what becomes of an attack, or a case of one, is marked with
`pytest.mark.attack(by="...", tries="...", outcome="...")`. The tests are read, not run: `make test` runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from efvfl.util.files import write_atomically

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- attacks: made by `python -m tools.attacks` -->", "<!-- end of attacks -->"
# Everybody who can attack, from the farthest away to the nearest.
ATTACKERS = (
    "a stranger",
    "a client",
    "a party",
    "the label holder",
    "a file",
    "another user of the machine",
    "a disk",
)


@dataclass(frozen=True)
class Attack:
    """An attack that a test tries."""

    by: str
    tries: str
    outcome: str
    file: str  # of the test, relative to the repository
    test: str


def attacks_in(path: Path) -> Iterator[Attack]:
    """Yield the attacks that the tests in a file try, in their order."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for top in tree.body:
        names = [top.name] if isinstance(top, ast.FunctionDef | ast.ClassDef) else []
        for node in ast.walk(top):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.attack"):
                continue
            said = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            if node.args or set(said) != {"by", "tries", "outcome"} or said["by"] not in ATTACKERS:
                raise SystemExit(
                    f"{path}:{node.lineno}: expected attack(by=..., tries=..., outcome=...) by one of "
                    f"{', '.join(ATTACKERS)}, got {ast.unparse(node)}"
                )
            yield Attack(**said, file=path.relative_to(ROOT).as_posix(), test=names[0] if names else path.stem)


def all_attacks() -> list[Attack]:
    """Return the attacks of all tests, ordered by attacker."""
    found = [attack for path in sorted((ROOT / "tests").rglob("*.py")) for attack in attacks_in(path)]
    return sorted(found, key=lambda attack: ATTACKERS.index(attack.by))


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| who | tries | what happens | test |", "| --- | --- | --- | --- |"]
    for a in all_attacks():
        tries, outcome = a.tries.replace("|", "\\|"), a.outcome.replace("|", "\\|")
        lines.append(
            f"| {a.by} | {tries} | {outcome} | [{a.test.removeprefix('test_').replace('_', ' ')}](../{a.file}) |"
        )
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the table that the tests give."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")).encode())
    print(f"{len(all_attacks())} attacks in {PAGE.relative_to(ROOT)}")
