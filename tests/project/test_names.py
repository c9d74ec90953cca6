"""Names in the package mean one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import efvfl

SOURCE = Path(efvfl.__file__).parent


def test_no_class_name_exists_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert len(places) > 50
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
