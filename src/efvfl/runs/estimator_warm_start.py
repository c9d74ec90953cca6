"""A further `fit` of an estimator with `warm_start`: it goes on from the parameters and encoders of the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from efvfl.errors import ConfigError

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder

ANEW = "or set warm_start=False to start anew"


def check_columns(encoders: Mapping[str, Encoder], parties: Mapping[str, list[str]]) -> None:
    """Refuse parties or columns that are not those of the last fit."""
    last = {name: [column.name for column in encoder.columns] for name, encoder in encoders.items()}
    if list(parties) != list(last):
        raise ConfigError(
            f"warm_start: expected the parties of the last fit, {list(last)}, got {list(parties)}: use these, {ANEW}."
        )
    for name, columns in last.items():
        if parties[name] != columns:
            raise ConfigError(
                f"warm_start: expected the columns of {name!r} in the last fit, {columns}, got {parties[name]}: use "
                f"these, {ANEW}."
            )


def take_over(owners: Sequence[str], modules: Sequence[nn.Module], last: Sequence[nn.Module]) -> None:
    """Give the modules of these owners the parameters that they had after the last fit."""
    for owner, module, trained in zip(owners, modules, last, strict=True):
        then, now = ({k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (trained, module))
        differ = [key for key in sorted({*then, *now}) if then.get(key) != now.get(key)]
        if differ:
            key = differ[0]
            raise ConfigError(
                f"warm_start: the model of {owner!r} is not the one of the last fit: {key} had shape "
                f"{then.get(key, 'none')} then, and has {now.get(key, 'none')} now. Set model, width and hidden back, "
                f"{ANEW}."
            )
        module.load_state_dict(trained.state_dict())
