"""What all participants must agree on before they align, and how two of them find out where they differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from efvfl.config.run_file import RunConfig
from efvfl.errors import ProtocolError
from efvfl.network import handshake
from efvfl.network.links.frame import PROTOCOL


def about(config: RunConfig, name: str) -> dict[str, Any]:
    """Return what a participant says of itself in its HELLO; nothing of it is about rows."""
    table = {
        "task": "align",
        "parties": [party.name for party in config.party],
        "label_holder": config.label_holder,
        "align": config.data.align,
        "id_format": sorted(set(config.data.id_format)),
        "seed": config.seed,
        "shares": [config.data.validation, config.data.test],
        "stratify": config.data.stratify,
    }
    shared = json.loads(json.dumps(table))  # as it is after its way
    return {"protocol": PROTOCOL, "name": name, "digest": handshake.digest(shared), "shared": shared, "rows": {}}


def compare(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse a party that does not fit."""
    shared = theirs.get("shared")
    if not isinstance(shared, dict) or shared.get("task") != "align":
        raise ProtocolError("the server aligns tables: run `efvfl align` with --party first, and `efvfl join` after.")
    handshake.compare(mine, theirs)


def order_digest(ids: Iterable[str], salt: bytes) -> bytes:
    """Return a salted digest of ids in their order."""
    found = hashlib.blake2b(key=salt, digest_size=32)
    for name in ids:
        code = name.encode()
        found.update(len(code).to_bytes(8, "little") + code)
    return found.digest()
