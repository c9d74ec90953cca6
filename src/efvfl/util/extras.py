"""Optional packages: an import that fails names the extra that brings them.

torch, numpy, numba, safetensors and rich are always there. Everything else is imported within `optional`:

    with optional("tables", "reading tables"):
        import polars
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from efvfl.errors import MissingExtraError

# The modules of each extra in pyproject.toml, with the names under which they are installed. An extra may bring others.
EXTRAS: dict[str, dict[str, str]] = {
    "plots": {"matplotlib": "matplotlib", "PIL": "pillow"},
    "tables": {"polars": "polars"},
    "sklearn": {"sklearn": "scikit-learn", "polars": "polars"},
    "network": {"cryptography": "cryptography", "nacl": "pynacl"},
    "dashboard": {"fastapi": "fastapi", "starlette": "starlette", "uvicorn": "uvicorn"},
    "service": {"fastapi": "fastapi", "starlette": "starlette", "uvicorn": "uvicorn"},
    "ray": {"ray": "ray"},
    "tensorboard": {"tensorboard": "tensorboard"},
    "mlflow": {"mlflow": "mlflow-skinny", "sqlalchemy": "sqlalchemy", "alembic": "alembic"},
    "export": {"onnx": "onnx", "onnxruntime": "onnxruntime", "onnxscript": "onnxscript"},
    "metrics": {"prometheus_client": "prometheus-client"},
    "wandb": {"wandb": "wandb"},
}


@contextmanager
def optional(extra: str, what: str) -> Iterator[None]:
    """Import packages of an extra within this context; if one is missing, the error says how to install it.

    `what` begins a sentence: "reading tables" becomes "reading tables needs polars: pip install 'efvfl[tables]'."
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = EXTRAS[extra].get((error.name or "").partition(".")[0])
        if package is None:  # not one of the extra's: a broken installation, which must not be hidden
            raise
        raise MissingExtraError(f"{what} needs {package}: pip install 'efvfl[{extra}]'.") from error


@contextmanager
def left_out(say: Callable[[str], object]) -> Iterator[None]:
    """Go on without what needs a missing extra, and say so: a run is worth having without its picture."""
    try:
        yield
    except MissingExtraError as error:
        say(f"Left out: {error}")
