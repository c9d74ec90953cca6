"""Two banks and a label holder, as three processes on this machine: from certificates to predictions.

    python examples/two_banks/run.py [FOLDER]

Everything goes to FOLDER (runs/two_banks). Ctrl-C stops all processes; the same command continues from there.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from make_data import make_data

sys.path.append(str(Path(__file__).parent.parent))
from processes import Processes, equip, free_port, tell

HERE = Path(__file__).parent
BANKS = ("bank_a", "bank_b")


def together(processes: Processes, folder: Path, *words: str) -> None:
    """Run the label holder's command together with both banks."""
    rest = ("--dir", "run", "--address", f"127.0.0.1:{free_port()}")
    processes.start("server", folder / "server", *words, *rest)
    for bank in BANKS:
        processes.start(bank, folder / bank, "join", "federation.toml", "--party", bank, *rest)
    processes.wait("server")
    processes.stop(grace=3.0)


def accuracy(folder: Path) -> None:
    """Compare the predictions with the labels."""
    with np.load(folder / "labels.npz") as file:
        labels = dict(zip(file["ids"].tolist(), file["y"].tolist(), strict=True))
    with open(folder / "predictions.csv", encoding="utf-8", newline="") as file:
        right = [int(row["prediction"]) == labels[row["id"]] for row in csv.DictReader(file)]
    print(f"Test accuracy: {sum(right) / len(right):.4f}, {sum(right)} of {len(right)} rows.", flush=True)


def story(processes: Processes, folder: Path) -> None:
    """Train, predict, compare, audit."""
    print(f"Making rows, certificates and a copy of the file for each in {folder}.", flush=True)
    rows = {path.stem: path for path in make_data(folder / "rows")}
    rows["server"] = rows.pop("labels")
    equip(folder, HERE / "federation.toml", rows, {})
    print("\nTraining.", flush=True)
    together(processes, folder, "serve", "federation.toml")
    print("\nPredicting the test rows; the banks join again.", flush=True)
    together(processes, folder, "predict", "federation.toml", "--split", "test")
    accuracy(folder / "server")
    print("\nWhat bank_a sent and received.", flush=True)
    processes.start("bank_a", folder / "bank_a", "audit", "run")
    processes.wait("bank_a")


if __name__ == "__main__":
    title = "Two banks and a label holder on this machine."
    sys.exit(tell(title, "runs/two_banks", "server/predictions.csv", story))
