"""States on disk: tensors as safetensors, everything else as JSON beside them in the same file. Never pickle.

A file is written next to its place, flushed to the disk and renamed: a crash leaves the old one or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from efvfl.errors import CheckpointError


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write, then put it at `path` so that no crash leaves half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, safetensors.SafetensorError) as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}. What was there before is untouched.") from error
    sync_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that no crash leaves half of it."""
    with _replacing(path) as part:
        part.write_bytes(data)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder outlive a power failure."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise CheckpointError(f"cannot flush {folder}: {error}.") from error


def _strip(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace what JSON cannot say by a tagged list; plain lists are tagged too, so that nothing is ambiguous."""
    match value:
        case Tensor():
            tensors[str(len(tensors))] = value.detach().contiguous()
            return ["tensor", str(len(tensors) - 1)]
        case bytes():
            tensors[str(len(tensors))] = (
                torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)
            )
            return ["bytes", str(len(tensors) - 1)]
        case Counter():
            return ["counter", [[_strip(k, tensors), v] for k, v in value.items()]]
        case dict():
            return ["dict", [[_strip(k, tensors), _strip(v, tensors)] for k, v in value.items()]]
        case list():
            return ["list", [_strip(v, tensors) for v in value]]
        case tuple():
            return ["tuple", [_strip(v, tensors) for v in value]]
        case None | bool() | int() | float() | str():
            return value
    raise CheckpointError(f"a state holds a {type(value).__name__}, which cannot be saved.")


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, list):
        return value
    match value:
        case ["tensor", str(name)] if name in tensors:
            return tensors[name]
        case ["bytes", str(name)] if name in tensors:
            return tensors[name].numpy().tobytes()
        case ["counter", list(pairs)]:
            return Counter({_restore(k, tensors): v for k, v in pairs})
        case ["dict", list(pairs)]:
            return {_restore(k, tensors): _restore(v, tensors) for k, v in pairs}
        case ["list", list(items)]:
            return [_restore(v, tensors) for v in items]
        case ["tuple", list(items)]:
            return tuple(_restore(v, tensors) for v in items)
    raise CheckpointError(f"a checkpoint holds an entry of unknown form: {str(value)[:80]}")


def _parts(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a state as safetensors takes it: tensors by name, and the rest as text."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_strip(state, tensors))
    return tensors, {"efvfl": "1", "tree": tree}


def to_bytes(state: dict[str, Any]) -> bytes:
    """Return a state as the bytes of its file."""
    tensors, words = _parts(state)
    return safetensors.torch.save(tensors, metadata=words)


def from_bytes(data: bytes) -> Any:
    """Return the state that `to_bytes` was given."""
    size = int.from_bytes(data[:8], "little")  # of the header, which safetensors' own reader of bytes keeps to itself
    tree = json.loads(data[8 : 8 + size])["__metadata__"]["tree"]
    return _restore(json.loads(tree), safetensors.torch.load(data))


def save(path: Path | str, state: dict[str, Any]) -> None:
    """Write a state. Tensors go from where they lie to the disk, without a copy of the whole in RAM."""
    tensors, words = _parts(state)
    with _replacing(Path(path)) as part:
        safetensors.torch.save_file(tensors, part, metadata=words)


def load(path: Path | str) -> dict[str, Any]:
    """Read what `save` wrote."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("efvfl") != "1":
            raise CheckpointError(f"{path} is not a checkpoint of this version of efvfl.")
        state = _restore(json.loads(metadata["tree"]), tensors)
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path}: {error}. Start again or name another file."
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not hold a state.")
    return state
