"""How a run is watched where its file does not say: when records are made, how rows are evaluated, when it stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from efvfl.config.run_file import RunConfig

RECORDS = 50  # of a run on tables: each sends the validation rows, compressed
PATIENCE = 10  # epochs, or
RECORDS_OF_PATIENCE = 3


@dataclass(frozen=True)
class Watching:
    """What a run file means, with what it leaves out."""

    every: int  # epochs between two records
    patience: int  # epochs without a better validation loss; 0: training does not stop early, and keeps the last model
    by_messages: bool  # whether held-out rows are evaluated by messages; else exactly, beside the protocol

    @classmethod
    def of(cls, config: RunConfig, tables: bool) -> Self:
        """Return what a file means; by default runs on tables stop early, unless steps may go without a party."""
        tables = tables and config.network.on_missing != "stale"
        by_messages = config.evaluation == "compressed" if config.evaluation else tables or config.decides
        every = config.observe_every or (max(1, config.epochs // RECORDS) if tables else 1)
        default = max(PATIENCE, RECORDS_OF_PATIENCE * every) if tables and by_messages and config.data.validation else 0
        return cls(every, default if config.patience is None else config.patience, by_messages)
