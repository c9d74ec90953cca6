"""The result of an alignment: the rows that take part, in the order that all use, with their splits.

They are those that all participants share, or the label holder's (`align = "outer"`), of which each may lack some.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np

from efvfl.data.tables.splits import SPLITS as SPLITS
from efvfl.errors import DataError
from efvfl.network.align.list_targets import ListTargets, read_drawn
from efvfl.network.align.messages import DIGEST
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

with optional("tables", "a list of aligned rows"):
    import polars

HAS: Final = "has "  # what the names of columns begin with that say which rows a party has
LABELLED: Final = ("label", "class", "weight", "loss")  # columns of lists that have the labels
DRAWN: Final = "drawn"  # a further one of lists whose labels were randomised: how


@dataclass(frozen=True)
class OuterPlaces:
    """All rows of the label holder's list, split by split, and who has which: a byte for each row, 1 or 0."""

    totals: tuple[int, ...]  # rows of every split
    held: bytes  # by whoever has this list
    masks: dict[str, bytes] = field(default_factory=dict)  # by party, as far as it is known here
    targets: ListTargets | None = None  # of all rows, where labels are shared

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(self.totals)

    def spans(self) -> dict[str, slice]:
        """Return where the rows of every split are that has some."""
        ends = list(accumulate(self.totals))
        found = zip(SPLITS, self.totals, ends, strict=True)
        return {split: slice(end - count, end) for split, count, end in found if count}

    def codes(self) -> bytes:
        """Return the split code of every row."""
        return b"".join(bytes((code,)) * count for code, count in enumerate(self.totals))


@dataclass(frozen=True)
class Aligned:
    """The list of rows."""

    ids: list[str]  # that are held here
    splits: bytes  # a code for each id
    outer: OuterPlaces | None = None  # None: all participants have all rows

    def digest(self) -> bytes:
        """Return a digest of the whole list."""
        digest = hashlib.blake2b(len(self.ids).to_bytes(8, "little") + self.splits, digest_size=DIGEST)
        for name in self.ids:
            code = name.encode()
            digest.update(len(code).to_bytes(8, "little") + code)
        for name, mask in self.outer.masks.items() if self.outer else ():
            digest.update(name.encode() + b"\x00" + mask)
        if self.outer and self.outer.targets:
            digest.update(json.dumps(self.outer.targets.table()).encode())
        return digest.digest()

    def counts(self) -> dict[str, int]:
        """Return how many rows each split has."""
        rows = Counter(self.splits)
        return {split: rows[code] for code, split in enumerate(SPLITS)}

    def by_split(self) -> dict[str, list[str]]:
        """Return the ids that are held here of every split that has rows, here or elsewhere."""
        found: dict[str, list[str]] = {split: [] for split in SPLITS}
        for name, code in zip(self.ids, self.splits, strict=True):
            found[SPLITS[code]].append(name)
        totals = self.outer.totals if self.outer else tuple(map(len, found.values()))
        return {split: ids for (split, ids), total in zip(found.items(), totals, strict=True) if total}

    def save(self, path: Path) -> None:
        """Write the list as Parquet with the columns `id` and `split`, and one for each party that may lack rows.

        A row that is not held here has no id.
        """
        if self.outer is None:
            columns: dict[str, object] = {"id": self.ids, "split": [SPLITS[code] for code in self.splits]}
        else:
            own = iter(self.ids)
            columns = {
                "id": polars.Series([next(own) if held else None for held in self.outer.held], dtype=polars.String),
                "split": [SPLITS[code] for code in self.outer.codes()],
                **{HAS + name: np.frombuffer(mask, dtype=bool) for name, mask in self.outer.masks.items()},
                **(_columns(self.outer.targets) if self.outer.targets else {}),
            }
        buffer = io.BytesIO()
        polars.DataFrame(columns).write_parquet(buffer)
        write_atomically(path, buffer.getvalue())

    def compared(self, before: Aligned) -> tuple[int, int]:
        """Return how many rows an earlier list did not have, and how many of its rows this one does not have."""
        now, then = set(self.ids), set(before.ids)
        return len(now - then), len(then - now)

    @classmethod
    def load(cls, path: Path) -> Aligned:
        """Return the list that `save` wrote."""
        try:
            frame = polars.read_parquet(path)
        except (OSError, polars.exceptions.PolarsError) as error:
            raise DataError(f"cannot read {path}: {error}. Run `efvfl align` first, all together.") from error
        has = [name for name in frame.columns if name.startswith(HAS)]
        expected = {"id": polars.String, "split": polars.String, **dict.fromkeys(has, polars.Boolean)}
        shared = set(LABELLED) <= set(frame.columns)
        schema = frame.drop(*LABELLED, DRAWN, strict=False).schema if shared else frame.schema
        whole = schema == expected and not any(frame[name].null_count() for name in ("split", *has))
        if not whole or not set(frame["split"]) <= set(SPLITS):
            raise DataError(f"{path} was not written by `efvfl align`: run it again, all together.")
        codes = bytes(SPLITS.index(split) for split in frame["split"])
        if not has:
            return cls(frame["id"].to_list(), codes)
        held = frame["id"].is_not_null()
        totals = Counter(codes)
        places = OuterPlaces(
            tuple(totals[code] for code in range(len(SPLITS))),
            held.to_numpy().tobytes(),
            {name.removeprefix(HAS): frame[name].to_numpy().tobytes() for name in has},
            _targets(frame) if shared else None,
        )
        if places.codes() != codes:
            raise DataError(f"{path} was not written by `efvfl align`: run it again, all together.")
        own = bytes(code for code, here in zip(codes, held, strict=True) if here)
        return cls(frame["id"].drop_nulls().to_list(), own, places)


def _columns(targets: ListTargets) -> dict[str, polars.Series]:
    """Return the columns of labels: a class has its name beside its number, and every row the loss."""
    names = [targets.names[int(label)] if targets.names else None for label in targets.labels]
    kind = polars.Int64 if isinstance(targets.labels[0], int) else polars.Float64
    loss = [targets.loss] * len(targets.labels)
    values = (targets.labels, names, targets.weights, loss)
    kinds = (kind, polars.String, polars.Float64, polars.String)
    found = {name: polars.Series(of, dtype=dtype) for name, of, dtype in zip(LABELLED, values, kinds, strict=True)}
    if targets.drawn is not None:
        found[DRAWN] = polars.Series([json.dumps(targets.drawn)] * len(targets.labels), dtype=polars.String)
    return found


def _targets(frame: polars.DataFrame) -> ListTargets:
    """Return what `_columns` wrote; every class has a row."""
    labels, classes, weights, loss = (frame[name].to_list() for name in LABELLED)
    named = {int(label): name for label, name in zip(labels, classes, strict=True) if name is not None}
    drawn = read_drawn(json.loads(frame[DRAWN][0])) if DRAWN in frame.columns else None
    return ListTargets(labels, weights, tuple(named[code] for code in sorted(named)), loss[0], drawn)


def shapes(ids: Sequence[str]) -> str:
    """Describe the format of ids without showing any."""
    lengths = [len(name) for name in ids]
    kinds = Counter(map(_shape, ids))
    shares = ", ".join(f"{count / len(ids):.0%} {kind}" for kind, count in kinds.most_common())
    return f"{min(lengths)} to {max(lengths)} characters: {shares}"


def _shape(name: str) -> str:
    if name.isdecimal():
        return "digits only"
    if name.isalpha():
        return "letters only"
    return "digits and letters" if name.isalnum() else "with other characters"
