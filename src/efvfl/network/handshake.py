"""What participants must agree on before they train, and the error that says where two of them differ.

Each has a copy of the federation file. Its shared part is compared at every handshake; the rest (a party's model, data,
limits and private seed) is local and never sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core.presence import RowPresence
from efvfl.errors import ProtocolError
from efvfl.network.links.frame import PROTOCOL, digest_of
from efvfl.runs.build import model_config, watching
from efvfl.util.nested import differences


def shared_part(config: RunConfig, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings that must be equal in every participant's file."""
    table = {
        "parties": list(names),
        "widths": [model_config(config, name).width for name in names],
        "label_holder": config.label_holder,
        "seed": config.seed,
        "batch_size": config.batch_size,
        "batch_order": config.batch_order,
        "loss": config.loss,
        "shares": [config.data.validation, config.data.test],
        "method": asdict(config.method),
        "agreement": asdict(config.agreement),
        "optimizer": config.optimizer,
        "stale": config.network.on_missing == "stale",
    }
    if config.data.align == "outer":
        table |= {"align": "outer", "min_parties": config.data.min_parties}
    if watching(config).by_messages:
        table["evaluation"] = "compressed"
    if config.agreement.labels == "shared":  # parties run the fusion model themselves
        table |= {"fusion": asdict(config.fusion), "class_weights": config.class_weights}
        table |= {"weighted": True} if config.weighted and config.data.align != "outer" else {}  # a list has weights
    return dict(json.loads(json.dumps(table)))  # tuples become lists, as they do when sent


def own_part(config: RunConfig, loss: str, salt: str, weights: Tensor | None) -> dict[str, Any]:
    """Return what of the label holder alone decides what it sends, for its checkpoint: it is never sent.

    Of its private seeds and of the weights of its training rows that is a salted digest.
    """
    here = config.label_holder
    table = {
        "loss": loss,  # a file may leave it to the labels
        "class_weights": config.class_weights,
        "weights": None if weights is None else _salted(salt, weights),
        "fusion": asdict(config.fusion),
        "protect": asdict(config.protect),
        "model": asdict(model_config(config, here)) if here else None,
        **_own_training(config, here),
        "private_seed": digest({"salt": salt, "seeds": [config.private_seed, config.of(here).private_seed]}),
    }
    return dict(json.loads(json.dumps(table)))


def own_model(config: RunConfig, name: str) -> dict[str, Any]:
    """Return the settings of a party's model, for its checkpoint: they are never sent. Where it computes may change."""
    model, protect = asdict(model_config(config, name)), config.of(name).protect
    own = {"model": {key: value for key, value in json.loads(json.dumps(model)).items() if key != "device"}}
    return own | _own_training(config, name) | ({"protect": asdict(protect)} if protect.on else {})


def _own_training(config: RunConfig, name: str) -> dict[str, Any]:
    """Return how a party trains its model, if not as the others do."""
    own = config.of(name).training
    return {"training": asdict(own)} if own.optimizer or own.local_steps else {}


def _salted(salt: str, numbers: Tensor) -> str:
    return hashlib.blake2b(salt.encode() + numbers.numpy().tobytes(), digest_size=16).hexdigest()


def digest(table: Mapping[str, Any]) -> str:
    """Return a digest by which two tables can be compared."""
    return hashlib.blake2b(json.dumps(table, sort_keys=True).encode(), digest_size=16).hexdigest()


def memory_digest(digests: Sequence[str]) -> bytes:
    """Return one digest of all that two ends remember of each other, from those of its parts."""
    return digest_of("/".join(digests).encode())


def diverged(names: Sequence[str]) -> str:
    """Say that training has ended with memories that differ."""
    return (
        f"training has ended, but the server and {', '.join(names)} do not remember the same of what was sent: do not "
        "trust the result. A folder was restored from an old copy, a disk lost what it had confirmed, or memory is "
        "faulty. Start all anew in empty folders."
    )


def rows_part(ids: Mapping[str, Sequence[str]], salt: str) -> dict[str, list[Any]]:
    """Return the number of rows of every split, and a salted digest of their ids in order."""
    out = {}
    for split, names in ids.items():
        order = hashlib.blake2b(salt.encode(), digest_size=16)
        for name in names:
            order.update(name.encode() + b"\x00")
        out[split] = [len(names), order.hexdigest()]
    return out


def presence_part(presence: Mapping[str, RowPresence], salt: str) -> dict[str, list[Any]]:
    """Return the number of rows of every split, wherever they are held, and a digest of who has which.

    Nothing, if nobody is known to lack any.
    """
    out: dict[str, list[Any]] = {}
    if not any(known.missing for known in presence.values()):
        return out
    for split, known in presence.items():
        masks = hashlib.blake2b(salt.encode(), digest_size=16)
        for name, mask in known.masks.items():
            masks.update(name.encode() + b"\x00" + mask.numpy().tobytes())
        out[split] = [known.rows, masks.hexdigest()]
    return out


def about(config: RunConfig, name: str, names: Sequence[str], ids: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the contents of a participant's HELLO."""
    shared = shared_part(config, names)
    return {
        "protocol": PROTOCOL,
        "name": name,
        "digest": digest(shared),
        "shared": shared,
        "rows": rows_part(ids, digest(shared)),
    }


def compare(local: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
    """Refuse a party whose HELLO differs from ours; the error says what each side has."""
    name = remote.get("name")
    if remote.get("protocol") != local["protocol"]:
        raise ProtocolError(
            f"the server speaks protocol {local['protocol']}, {name} speaks {remote.get('protocol')!r:.20}: install "
            "the same release of efvfl at both."
        )
    if remote.get("digest") != local["digest"]:
        found = islice(differences(local["shared"], remote.get("shared")), 10)
        texts = [f"{where}: the server has {ours!r:.80}, {name} has {theirs!r:.80}" for where, ours, theirs in found]
        raise ProtocolError(
            f"the shared part of the files differs: {'; '.join(texts) or 'only the digest'}. Agree on one."
        )
    _compare_beginnings(local, remote)
    if "rows_of" in local or "presence" in remote:
        _compare_presence(local, remote)
        return
    rows = remote.get("rows")
    if not isinstance(rows, dict) or set(rows) != set(local["rows"]):
        raise ProtocolError(f"{name} sent no table of its rows by split.")
    for split, (count, order) in local["rows"].items():
        other = rows[split]
        if not isinstance(other, list) or len(other) != 2:
            raise ProtocolError(f"{name} sent no count and digest of its {split} rows.")
        if other[0] != count:
            raise ProtocolError(
                f"the server holds {count:,} {split} rows, {name} holds {other[0]!r:.20}: align the tables, so "
                "that all list the same ids in the same order."
            )
        if other[1] != order:
            raise ProtocolError(
                f"the server and {name} hold {count:,} {split} rows each, but not the same ids in the same order: "
                "align the tables first."
            )


def _compare_presence(local: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
    """Refuse a party that has other rows of the label holder's than are known here."""
    name, expected = remote.get("name"), local.get("rows_of", {}).get(remote.get("name"))
    if expected is None:
        raise ProtocolError(
            f"{name} lacks some rows, which is not known here: align tables all together; of arrays, give has_{name} "
            "in the label holder's file."
        )
    if remote.get("rows") != expected["rows"] or remote.get("presence", {}) != expected["presence"]:
        counts = ", ".join(f"{count:,} {split}" for split, (count, _) in expected["rows"].items())
        raise ProtocolError(
            f"the server and {name} do not agree on which rows {name} has; here it has {counts} rows: a table or a "
            "list was changed since the alignment. Run `efvfl align` again, all together, and start in new folders."
        )


def _compare_beginnings(local: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
    """Refuse a party that trains on the rows of another alignment, or does not start from the same trained run."""
    name, ours, theirs = remote.get("name"), local.get("alignment", 0), remote.get("alignment", 0)
    if ours != theirs:
        raise ProtocolError(
            f"the server trains on alignment {ours}, {name} on alignment {theirs!r:.20} (`efvfl align --list` shows "
            "them; a run that has begun keeps its own, and a new one takes the newest): align all together, or start "
            "all in new folders."
        )
    starts, given = local.get("start", {}), remote.get("start", {})
    known, own = starts.get(str(name)), given.get(str(name)) if isinstance(given, dict) else None
    if given and not starts:
        raise ProtocolError(f"{name} starts from a trained run, but the server does not: give --from at both or none.")
    if known and not given:
        raise ProtocolError(
            f"{name} took part in the run that the server starts from, but starts fresh itself: give --from with its "
            "folder of that run. If that is lost, start all without --from."
        )
    if own != known:
        raise ProtocolError(f"{name} starts from another run than the server: give --from with folders of one run.")
