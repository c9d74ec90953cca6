"""Rows that a party of an estimator lacks, those in which all of its values are missing; and what parties are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from efvfl.core.presence import trained_together
from efvfl.errors import InputError
from efvfl.training.values import PartyValues, ValueEstimate
from efvfl.util.extras import optional

with optional("sklearn", "an estimator"):
    import polars
    from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder
    from efvfl.training.federation import Federation


def present(frame: polars.DataFrame, parties: Mapping[str, Sequence[str]]) -> Tensor:
    """Return which rows every party has, shape (rows, parties), or refuse rows that nobody has."""
    masks = [torch.from_numpy(_any_value(frame.select(columns)).to_numpy().copy()) for columns in parties.values()]
    table = torch.stack(masks, dim=1)
    nobody = int((~table.any(dim=1)).sum())
    if nobody:
        raise InputError(f"expected a value in every row of X, got {nobody:,} rows without any: leave them out.")
    return table


def _any_value(frame: polars.DataFrame) -> polars.Series:
    """Return which rows have a value in some column; NaN and infinity are none."""
    found = polars.Series([False]).new_from_index(0, frame.height)
    for column in frame:
        here = column.is_not_null()
        found = found | (here & column.is_finite().fill_null(False) if column.dtype.is_float() else here)
    return found


def check_trained(table: Tensor, names: Sequence[str], together: Tensor) -> None:
    """Refuse rows of parties that were never present `together` in training, shape (patterns, parties)."""
    trained = trained_together(together, table, sampled=True)
    if not bool(trained.all()):
        alone = [name for name, has in zip(names, table[~trained][0].tolist(), strict=True) if has]
        raise InputError(
            f"expected rows of parties that some training row had together, got {int((~trained).sum()):,} rows of "
            f"others, such as {', '.join(alone)}: leave these rows out, or train with such rows."
        )


def own_rows(frame: polars.DataFrame, names: Sequence[str], table: Tensor | None) -> dict[str, polars.DataFrame]:
    """Return the rows that every party has; `table` None: all have all."""
    if table is None:
        return dict.fromkeys(names, frame)
    return {name: frame.filter(polars.Series(table[:, k].numpy())) for k, name in enumerate(names)}


def blanked(features: Mapping[str, Tensor], table: Tensor) -> dict[str, Tensor]:
    """Return features with NaN in the rows that a party lacks, as `federate` takes them."""
    return {name: x.masked_fill(~table[:, k, None], torch.nan) for k, (name, x) in enumerate(features.items())}


class PartlyPresent:
    """What an estimator says of its parties: whose columns a prediction rests on, and what parties and columns add."""

    federation_: Federation
    encoders_: dict[str, Encoder]

    @property
    def party_values_(self) -> PartyValues:
        """How well every subset of parties predicts the validation rows, and what each party is worth by that."""
        check_is_fitted(self)
        return self.federation_.party_values()

    @property
    def column_values_(self) -> dict[str, dict[str, ValueEstimate]]:
        """By how much the metric of validation rows falls when a column's values stand at other rows, by party."""
        check_is_fitted(self)
        return self.federation_.column_values({name: encoder.places for name, encoder in self.encoders_.items()})

    def parties_used(self, X: Any) -> list[tuple[str, ...]]:
        """Return for every row whose columns a prediction rests on: the parties that have the row."""
        check_is_fitted(self)
        frame, names = self._table(X, fitting=False), tuple(self.encoders_)
        table = self._present(frame)
        if table is None:
            return [names] * frame.height
        return [tuple(n for n, has in zip(names, row, strict=True) if has) for row in table.tolist()]

    def _table(self, X: Any, fitting: bool) -> polars.DataFrame:
        raise NotImplementedError

    def _present(self, frame: polars.DataFrame) -> Tensor | None:
        raise NotImplementedError
