"""Imports point one way, and the network-facing half never needs torch."""

import ast
from pathlib import Path

import efvfl

SOURCE = Path(efvfl.__file__).parent

# Each module and the modules of ours it may import; a package stands for all its modules.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "_jit": set(),
    "own": {"errors"},
    "schedule": {"errors"},
    "packet": {"errors"},
    "rng": {"_jit"},
    "compress": {"_jit", "errors", "packet", "rng", "schedule"},
    "batches": {"errors", "rng"},
    "mapped": {"errors"},
    "memory": {"batches", "errors", "mapped"},
    "channel": {"batches", "compress", "errors", "memory", "packet", "rng"},
    "losses": {"errors"},
    "block": {"errors"},
    "fusion": {"block", "errors", "losses", "rng"},
    "protect": {"errors"},
    "replica": {"batches", "block", "channel", "errors", "packet"},
    "replicate": {"block", "channel", "errors", "replica"},
    "private": {"batches", "channel", "errors", "fusion", "packet", "protect", "replica", "rng"},
    "shared": {"batches", "channel", "errors", "fusion", "losses", "packet", "replica", "rng"},
    "forward": {"batches", "block", "errors", "rng"},
    "party": {"batches", "block", "channel", "crew", "errors", "forward", "packet", "rng"},
    "server": {"batches", "block", "channel", "errors", "fusion", "losses", "packet", "rng"},
    "methods": {"compress", "errors", "memory"},
    "ledger": {"packet"},
    "transport": {"errors", "ledger", "packet"},
    "checkpoint": {"errors"},
    "observe": {"batches", "channel", "compress", "fusion", "losses", "memory", "rng"},
    "arguments": {"block", "errors", "methods", "observe", "protect"},
    "pace": set(),
    "train": {
        "arguments",
        "batches",
        "errors",
        "fusion",
        "ledger",
        "observe",
        "pace",
        "packet",
        "party",
        "server",
        "transport",
    },
    "build": {
        "batches",
        "block",
        "channel",
        "errors",
        "fusion",
        "losses",
        "memory",
        "methods",
        "party",
        "private",
        "protect",
        "replica",
        "replicate",
        "rng",
        "server",
        "shared",
    },
    "local": {
        "arguments",
        "batches",
        "block",
        "build",
        "errors",
        "fusion",
        "ledger",
        "losses",
        "methods",
        "observe",
        "party",
        "protect",
        "rng",
        "train",
        "transport",
    },
    "device": {"errors"},
    "crew": {"batches", "block", "checkpoint", "errors", "forward", "observe", "rng"},
    "theory": {"errors", "methods"},
    "data": {"_jit", "batches", "checkpoint", "errors", "observe", "rng", "tabular"},
    "models": {"errors", "own", "rng"},
    "vision": {"errors"},
    "config": {"compress", "errors", "methods", "own", "protect", "reading"},
    "reading": {"errors", "schedule"},
    "tabular": {"config", "errors", "models", "rng"},
    "experiment": {
        "block",
        "config",
        "data",
        "device",
        "errors",
        "local",
        "losses",
        "models",
        "observe",
        "rng",
        "tabular",
        "train",
        "vision",
    },
    "metrics": {"errors", "losses"},
    "vertical": {
        "config",
        "errors",
        "experiment",
        "local",
        "losses",
        "models",
        "observe",
        "rng",
        "tabular",
        "train",
    },
    "estimators": {"errors", "losses", "vertical"},
    "sweep": {"config", "errors", "losses", "own"},
    "runner": {"checkpoint", "errors", "experiment", "own", "sweep", "train"},
    "tables": {"runner", "sweep"},
    "figures": {"checkpoint", "plot", "runner", "sweep", "tables"},
    "html": set(),
    "report": {"figures", "html", "sweep", "tables"},
    "folder": {"checkpoint", "config", "errors"},
    "run_figures": {"html", "metrics", "train"},
    "run_report": {"batches", "checkpoint", "errors", "folder", "html", "metrics", "run_figures", "train"},
    "reproduce": {"checkpoint", "data", "errors", "figures", "report", "runner", "sweep", "tables"},
    "plot": {"checkpoint", "train"},
    "screen": {"compress", "data", "train"},
    "demo": {"config", "data", "experiment", "plot", "screen", "train"},
    "network": {
        "batches",
        "block",
        "build",
        "channel",
        "checkpoint",
        "config",
        "crew",
        "data",
        "errors",
        "experiment",
        "folder",
        "fusion",
        "ledger",
        "local",
        "losses",
        "metrics",
        "observe",
        "pace",
        "packet",
        "party",
        "replicate",
        "rng",
        "screen",
        "server",
        "tabular",
        "train",
    },
    "cli": {
        "checkpoint",
        "config",
        "crew",
        "data",
        "demo",
        "errors",
        "experiment",
        "folder",
        "metrics",
        "network",
        "own",
        "plot",
        "reproduce",
        "run_report",
        "screen",
        "tabular",
        "train",
    },
    "__main__": {"cli"},
}
WITHOUT_TORCH = {"errors", "packet", "schedule", "ledger", "transport"}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "efvfl" else {str(node.module)}
    return found


def modules() -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if name != "__init__":
            files.setdefault(name, []).append(path)
    return files


def test_every_module_has_its_place() -> None:
    assert set(modules()) == set(LAYERS)


def test_no_import_points_up() -> None:
    for name, paths in modules().items():
        for path in paths:
            ours = {module.split(".")[1] for module in imports(path) if module.startswith("efvfl.")} - {name}
            assert ours <= LAYERS[name], f"{path.name} may not import {sorted(ours - LAYERS[name])}"


def test_there_is_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(LAYERS):
        ready = {name for name, below in LAYERS.items() if name not in done and below <= done}
        assert ready, f"a circle among {sorted(set(LAYERS) - done)}"
        done |= ready


def test_what_faces_the_network_does_not_import_torch() -> None:
    for name in WITHOUT_TORCH:
        for path in modules()[name]:
            assert not any(module.split(".")[0] == "torch" for module in imports(path)), f"{path.name} imports torch"


def test_public_names_are_sorted_and_real() -> None:
    upper = [name for name in efvfl.__all__ if name.isupper()]
    camel = [name for name in efvfl.__all__ if name[0].isupper() and not name.isupper()]
    lower = [name for name in efvfl.__all__ if name[0].islower()]
    assert efvfl.__all__ == sorted(upper) + sorted(camel) + sorted(lower)
    for name in efvfl.__all__:
        assert getattr(efvfl, name) is not None
