"""What uncompressed training would have sent: arithmetic on the settings of a run, not a measurement."""

from __future__ import annotations

from efvfl.core.batches import Batches
from efvfl.runs.run_folder import RunSettings
from efvfl.wire.ledger import Ledger


def svfl_bytes(settings: RunSettings, steps: int) -> dict[str, tuple[int, int]]:
    """Return the bytes that SVFL would have sent, (up, down) by party: float32 values without headers."""
    config, widths = settings.config, settings.widths
    agreement, label_holder = config["agreement"], config["label_holder"]
    batches = Batches(settings.rows["train"], config["batch_size"], 0, config["batch_order"])
    epochs, rest = divmod(steps, batches.per_epoch)  # every epoch visits as many rows
    visited = epochs * _rows_of(batches, batches.per_epoch) + _rows_of(batches, rest)
    reported = steps * batches.samples if agreement["reports"] == "all" else visited
    fusion_bytes = 4 * steps * settings.fusion if agreement.get("fusion") != "replicate" else 0
    out = {}
    for name, width in widths.items():
        if agreement["labels"] == "private":
            down = 4 * visited * width
        elif agreement["downlink"] == "aggregate":
            down = 4 * visited * width + fusion_bytes
        else:
            down = 4 * reported * (sum(widths.values()) - width) + fusion_bytes
        out[name] = (4 * reported * width, down) if name != label_holder else (0, 0)
    return out


def bytes_beside(settings: RunSettings | None, ledger: Ledger, steps: int) -> dict[str, dict[str, list[int]]]:
    """Return for a status file what was sent so far, [up, down] by party, and what SVFL would have sent."""
    table = ledger.table()
    names = sorted({name for parties in table.values() for name in parties})
    full = svfl_bytes(settings, steps) if settings else {}
    return {
        "sent": {name: [ledger.total("up", name), ledger.total("down", name)] for name in names},
        "uncompressed": {name: list(full[name]) for name in names if name in full},
    }


def _rows_of(batches: Batches, steps: int) -> int:
    return sum(batches.count(step) for step in range(steps))
