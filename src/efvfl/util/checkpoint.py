"""Saved states: tensors as safetensors, everything else as JSON in the same file. Pickle is never used.

A file is written under a temporary name, flushed to disk and renamed, so a crash leaves the old or the new version. Its
last bytes are a digest of all before them, as a tensor of its own: a bit that a disk has changed is noticed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, Final

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from efvfl.errors import CheckpointError, DamagedError
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")

FORMAT: Final = "2"  # of the file; 1 had no digest
_DIGEST: Final = 32  # bytes
_CHUNK: Final = 1 << 20  # bytes of a file that are read at a time

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
    table["digest"] = {"dtype": "U8", "shape": [_DIGEST], "data_offsets": [end, end + _DIGEST]}
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
    header = _header(tensors, {"efvfl": FORMAT, "tree": tree})
    content: list[bytes | memoryview] = [header]
    content += (tensor.cpu().reshape(-1).view(torch.uint8).numpy().data for tensor in tensors.values())
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for piece in content:
        digest.update(piece)
    return [*content, digest.digest()]


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


def save(path: Path | str, state: dict[str, Any], keep: bool = False) -> None:
    """Write a state to a file; `keep` the one that is there as the previous one, for `load_kept`."""
    write_atomically(Path(path), *_pieces(state), keep=previous(Path(path)) if keep else None)


def previous(path: Path) -> Path:
    """Return where the checkpoint before this one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def exists(path: Path) -> bool:
    """Whether there is something to go on from: this checkpoint, or the one before it."""
    return path.exists() or previous(path).exists()


def load_kept(path: Path) -> dict[str, Any]:
    """Return what `save` wrote; if that is damaged, it is set aside, and the one before it is returned."""
    before = previous(path)
    try:
        return load(before if before.exists() and not path.exists() else path)
    except DamagedError:
        if not (path.exists() and before.exists()):
            raise
    state, aside = load(before), path.with_name(f"{path.stem}.damaged{path.suffix}")
    try:
        os.replace(path, aside)  # or the next save would keep it in place of the good one
    except OSError as error:
        raise CheckpointError(f"cannot rename {path}, which is damaged: {error}.") from error
    log.warning(
        "%s is damaged: going on from the checkpoint before it, %s. It is set aside as %s.", path, before, aside
    )
    return state


def load(path: Path | str) -> dict[str, Any]:
    """Return the state that `save` wrote, or refuse a file that is not as it was written."""
    tensors: dict[str, Tensor] = {}
    try:
        with open(path, "rb") as whole:
            intact = _is_intact(whole)
        with safetensors.safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            if intact:
                tensors = {name: file.get_tensor(name) for name in names}
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path}: {error}. Start from the beginning or name another file."
        ) from error
    except (ValueError, safetensors.SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    # A damaged one may have lost its version too, but then it still has a digest.
    foreign = metadata.get("efvfl") == "1" or ("efvfl" not in metadata and "digest" not in names)
    if foreign or (intact and metadata["efvfl"] != FORMAT):
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of efvfl: go on with the one that wrote it, or start anew in "
            "an empty folder."
        )
    if not intact:
        raise _damaged(path, "its digest does not match its content")
    state = _restore(json.loads(metadata["tree"]), tensors)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not contain a state.")
    return state


def _damaged(path: Path | str, why: str) -> DamagedError:
    return DamagedError(
        f"cannot read the checkpoint {path}: it is damaged ({why}). Restore it from a copy, or start anew in an empty "
        "folder."
    )


def _is_intact(file: BinaryIO) -> bool:
    """Whether a file ends with the digest of all before it."""
    left = os.fstat(file.fileno()).st_size - _DIGEST
    digest = hashlib.blake2b(digest_size=_DIGEST)
    while left > 0 and (chunk := file.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return left == 0 and file.read() == digest.digest()
