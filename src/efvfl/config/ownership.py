"""Which of a participant's two files a key belongs to: what all agree on, or what is one's own.

Keys are dotted, as in `data.path`; a name that ends in a dot stands for a whole table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from efvfl.errors import ConfigError, describe, nearest


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGREED: Final = _keys(
    "seed epochs batch_size batch_order loss metrics class_weights observe_every note_every patience evaluation "
    "observe_gradient label_holder data.name data.validation data.test data.subset data.held_out data.augment "
    "data.align data.id_format data.duplicates data.stratify data.ids data.min_parties model.width fusion. method. "
    "agreement. optimizer. party.name party.ids party.report_seconds party.model.width network.address "
    "network.on_missing network.denied"
)
OWN: Final = _keys(
    "federation party folder certs private_seed memory threads data.path data.new data.id data.label data.weight "
    "data.columns data.leave_out data.types data.categories data.missing data.bins labels.path labels.id labels.label "
    "labels.weight model.name model.hidden model.activation model.last model.options model.device model.precision "
    "model.skip limits. protect. network.listen network.absent_seconds network.stale_seconds network.silent_seconds "
    "network.save_steps network.save_seconds training."
)


def is_own(table: Mapping[str, Any]) -> bool:
    """Whether a table is one participant's own file: it names a federation file, or says whose it is."""
    return "federation" in table or isinstance(table.get("party"), str)


def check_agreed(table: Mapping[str, Any], where: str) -> None:
    """Refuse what a federation file must not have."""
    for key in _unknown(table, AGREED):
        own = key.removeprefix("party.")
        if _has(OWN, own):
            raise ConfigError(
                f"{where}: {key} is not for all to know: write it as {own} in the own file of the participant that it "
                "concerns, and leave it out here."
            )
        raise ConfigError(f"{where}: unknown key {key!r}. {nearest(key, _names(AGREED))}")


def check_own(table: Mapping[str, Any], where: str, federation: str) -> None:
    """Refuse what a participant's own file must not have; `federation` names the other file."""
    if not isinstance(table.get("party"), str):
        raise ConfigError(
            f"{where}: expected party = 'NAME', the participant whose own file this is ('server' for a label holder "
            f"without columns), got none: the list of all parties is in {federation}."
        )
    for key in {name.partition(".")[0] for name in OWN if "." in name}:
        if not isinstance(table.get(key, {}), Mapping):
            raise ConfigError(f"{where}: {key}: expected a table, got {describe(table[key])}.")
    for key in _unknown(table, OWN):
        if _has(AGREED, key):
            raise ConfigError(f"{where}: {key} is agreed on by all: write it in {federation}, and leave it out here.")
        raise ConfigError(f"{where}: unknown key {key!r}. {nearest(key, _names(OWN))}")


def _unknown(table: Mapping[str, Any], known: frozenset[str]) -> Iterator[str]:
    return (key for key in keys(table) if not _has(known, key))


def _has(known: frozenset[str], key: str) -> bool:
    """Whether a key is known, or within one that is; what should be a table and is not gets an error of its own."""
    names = _names(known)
    return any(key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in names)


def _names(known: Iterable[str]) -> list[str]:
    return [name.removesuffix(".") for name in known]


def keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield all keys of a table and of those in it, dotted; those of parties without their numbers."""
    for key, value in table.items():
        inner = value if isinstance(value, list) else [value]
        tables = [item for item in inner if isinstance(item, Mapping)]
        if not tables:
            yield prefix + key
        for each in tables:
            if each:
                yield from keys(each, f"{prefix}{key}.")
