"""The packages of efvfl in their order, who imports whom, and a picture of it. An import that points up is an error.

python -m tools.house                              # the graph as text; exit code 1 if an import points up
python -m tools.house --svg docs/architecture.svg  # the picture as well
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tools.house_svg import draw

SOURCE = Path(__file__).resolve().parent.parent / "src" / "efvfl"

# From the ground up: a package may import from those before it, and from nothing that comes after.
LAYERS = (
    "errors",
    "util",
    "wire",
    "compress",
    "core",
    "training",
    "config",
    "data",
    "models",
    "runs",
    "experiments",
    "network",
    "cli",
)
# The same inside a package. Its own `__init__` comes before all of them, because Python runs it first.
INSIDE = {
    "network": (
        "identity",
        "links",
        "handshake",
        "align",
        "workers",
        "ops",
        "training",
        "predict",
        "doctor",
        "dashboard",
    ),
}
# The public names in `__init__` and the entry point stand outside: they may name everything, and nothing imports them.
DOORS = ("__init__", "__main__")

Graph = Mapping[str, set[str]]


class Import(NamedTuple):
    """One import of ours, from a module of ours: both as dotted names below efvfl."""

    path: Path
    line: int
    importer: str
    imported: str
    for_types: bool  # in a block that only type checkers read

    @property
    def place(self) -> str:
        """Where it is, as editors and compilers write it."""
        return f"{self.path.relative_to(SOURCE.parent.parent)}:{self.line}"


def module_name(path: Path) -> str:
    """Return a file's dotted name below efvfl; a package's `__init__` has the package's name."""
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def sources() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(SOURCE.rglob("*.py"))


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of all that is imported, wherever it stands: in functions and for types alone too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def is_module(name: str) -> bool:
    """Return whether there is a module or a package of this dotted name below efvfl."""
    path = SOURCE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def lines_for_types(tree: ast.AST) -> set[int]:
    """Return the lines below `if TYPE_CHECKING`."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {line for node in blocks for line in range(node.lineno, node.body[-1].lineno + 1)}


def imports() -> list[Import]:
    """Return every import of one of our modules by another."""
    found = []
    for path in sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for_types = lines_for_types(tree)
        for line, name in imported_names(tree):
            if name.startswith("efvfl."):
                target = name.removeprefix("efvfl.")
                target = target if is_module(target) else target.rpartition(".")[0]
                found.append(Import(path, line, module_name(path), target or "__init__", line in for_types))
    return found


def package_of(module: str) -> str:
    """Return the layer that a module belongs to, such as `core` or `network.links`."""
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if rest and first in INSIDE else first


def packages() -> list[str]:
    """Return all layers from the ground up, those inside a package in its place."""
    return [name for layer in LAYERS for name in (layer, *(f"{layer}.{inner}" for inner in INSIDE.get(layer, ())))]


def upward(found: list[Import]) -> list[str]:
    """Return a sentence for every import that points up, or that has no place in the order."""
    order = {name: height for height, name in enumerate(packages())}
    complaints = []
    for each in found:
        importer, imported = package_of(each.importer), package_of(each.imported)
        if importer in DOORS:
            continue
        if imported in DOORS:
            complaints.append(f"{each.place}: import from the module that defines the name, not from efvfl itself")
        elif importer not in order or imported not in order:
            unknown = importer if importer not in order else imported
            complaints.append(f"{each.place}: {unknown} has no place in the order of tools/house.py")
        elif order[imported] > order[importer]:
            complaints.append(f"{each.place}: {importer} may not import {imported}, which is above it")
    return complaints


def package_graph(found: list[Import]) -> Graph:
    """Return the packages below that each package imports; only those that have modules of their own."""
    order = packages()
    present = {package_of(module_name(path)) for path in sources()} - set(DOORS) - set(INSIDE)
    graph: dict[str, set[str]] = {name: set() for name in order if name in present}
    for each in found:
        importer, imported = package_of(each.importer), package_of(each.imported)
        if importer in graph and imported in graph and order.index(imported) < order.index(importer):
            graph[importer].add(imported)
    return graph


def summary(package: str) -> str:
    """Return the first sentence of a package's docstring, without its full stop."""
    path = SOURCE.joinpath(*package.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].removesuffix(".").replace("`", "")


def as_text(graph: Graph) -> str:
    """Return the graph from the top down, a package a line with what it is and what it imports."""
    lines = []
    for name in reversed(packages()):
        if name in graph:
            below = [other for other in reversed(packages()) if other in graph[name]]
            lines += [f"{name:<18} {summary(name)}", f"{'':<18} -> {', '.join(below) or 'nothing'}"]
    return "\n".join(lines)


def main() -> int:
    """Print the graph, write the picture if asked, and name every import that points up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture to this file")
    arguments = parser.parse_args()
    found = imports()
    graph = package_graph(found)
    print(as_text(graph))
    complaints = upward(found)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if arguments.svg:
        arguments.svg.write_text(picture(graph), encoding="utf-8")
    return 1 if complaints else 0


def picture(graph: Graph) -> str:
    """Return the graph as SVG."""
    return draw(graph, {name: summary(name) for name in (*graph, *INSIDE)})


if __name__ == "__main__":
    sys.exit(main())
