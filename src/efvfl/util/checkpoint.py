"""Saved states: tensors as safetensors, everything else as JSON in the same file. Pickle is never used.

A file is written under a temporary name, flushed to disk and renamed, so a crash leaves the old or the new version.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from efvfl.errors import CheckpointError
from efvfl.util.files import write_atomically

# safetensors' names of dtypes, in the order in which it writes them: an aligned file reads faster.
_DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def _strip(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace values that JSON cannot represent by tagged lists; plain lists are tagged too, to avoid ambiguity."""
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
    raise CheckpointError(f"a state contains a {type(value).__name__}, which cannot be saved.")


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `_strip` was given."""
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
    raise CheckpointError(f"a checkpoint contains an entry of unknown form: {str(value)[:80]}")


def _header(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return the header of a safetensors file: the size of the table of tensors, then the table."""
    table: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        table[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _pieces(state: dict[str, Any]) -> list[bytes | memoryview]:
    """Return a state as the pieces of its file, tensors without a copy: a copy of a large one might not fit."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_strip(state, tensors))
    for tensor in tensors.values():
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"a state contains a tensor of {tensor.dtype}, which cannot be saved.")
    order = list(_DTYPES)
    tensors = dict(sorted(tensors.items(), key=lambda item: (order.index(item[1].dtype), item[0])))
    header = _header(tensors, {"efvfl": "1", "tree": tree})
    return [header, *(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data for tensor in tensors.values())]


def to_bytes(state: dict[str, Any]) -> bytes:
    """Return a state as the bytes of its file.

    >>> from_bytes(to_bytes({"step": 3, "weights": (1.0, 2.0)}))
    {'step': 3, 'weights': (1.0, 2.0)}
    """
    return b"".join(_pieces(state))


def from_bytes(data: bytes) -> Any:
    """Return the state that `to_bytes` was given."""
    size = int.from_bytes(data[:8], "little")  # of the header, which safetensors.torch.load does not return
    tree = json.loads(data[8 : 8 + size])["__metadata__"]["tree"]
    return _restore(json.loads(tree), safetensors.torch.load(data))


def save(path: Path | str, state: dict[str, Any]) -> None:
    """Write a state to a file."""
    write_atomically(Path(path), *_pieces(state))


def load(path: Path | str) -> dict[str, Any]:
    """Return the state that `save` wrote."""
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
            f"cannot read the checkpoint {path}: {error}. Start from the beginning or name another file."
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not contain a state.")
    return state
