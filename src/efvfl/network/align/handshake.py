"""What participants must agree on before they align, and the error that says where two of them differ."""

from __future__ import annotations

import json
from typing import Any

from efvfl.config.run_file import RunConfig
from efvfl.errors import ProtocolError
from efvfl.network import handshake
from efvfl.network.align import sizes
from efvfl.network.align.messages import MOST_LISTS, VERSION
from efvfl.network.links.frame import PROTOCOL


def about(config: RunConfig, name: str) -> dict[str, Any]:
    """Return the contents of a participant's HELLO; none of them is about rows."""
    table = {
        "task": "align",
        "version": VERSION,
        "parties": [party.name for party in config.party],
        "label_holder": config.label_holder,
        "align": config.data.align,
        "id_format": sorted(set(config.data.id_format)),
        "seed": config.seed,
        "shares": [config.data.validation, config.data.test],
        "stratify": config.data.stratify,
        "ids": sizes.all_announced(config),
    }
    if config.data.align == "outer":
        table |= {"min_parties": config.data.min_parties, "labels": config.agreement.labels}
    shared = json.loads(json.dumps(table))  # as it is when received
    return {"protocol": PROTOCOL, "name": name, "digest": handshake.digest(shared), "shared": shared, "rows": {}}


def compare(local: dict[str, Any], remote: dict[str, Any]) -> None:
    """Refuse a party whose HELLO differs from ours, or that does not align."""
    shared = remote.get("shared")
    if not isinstance(shared, dict) or shared.get("task") != "align":
        raise ProtocolError("the server aligns tables: run `efvfl align` with --party first, and `efvfl join` after.")
    if shared.get("version") != VERSION:  # with other points nothing would ever be shared
        raise ProtocolError(
            f"the server aligns by version {VERSION} of the alignment, {remote.get('name')} by "
            f"{shared.get('version', 'an older one')!r:.20}: install the same release of efvfl at both."
        )
    handshake.compare(local, remote)


def newest(remote: dict[str, Any]) -> int:
    """Return the number of a party's newest list, from its HELLO; 0 if it has none."""
    number = remote.get("newest")
    if type(number) is not int or not 0 <= number < MOST_LISTS:
        raise ProtocolError(f"expected the number of the newest list in HELLO, got {number!r:.20}.")
    return number
