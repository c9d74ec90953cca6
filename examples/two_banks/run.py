"""Two banks and a label holder, as three processes on this machine: from certificates to predictions.

    python examples/two_banks/run.py [FOLDER]

Everything goes to FOLDER (runs/two_banks). Ctrl-C stops all processes; the same command goes on from there.
"""

import argparse
import csv
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from make_data import make_data

sys.path.append(str(Path(__file__).parent.parent))
from processes import EFVFL, Processes, free_port, own_copy

HERE = Path(__file__).parent
BANKS = ("bank_a", "bank_b")
PEOPLE = ("server", *BANKS)


def prepare(folder: Path) -> None:
    """Give each participant what it has before the start: its file, its rows, its key and the CA's certificate."""
    print(f"Making rows, certificates and a copy of the file for each in {folder}.", flush=True)
    text = (HERE / "federation.toml").read_text(encoding="utf-8")
    rows = {path.stem: path for path in make_data(folder / "rows")}
    subprocess.run([*EFVFL, "certs", HERE / "federation.toml", "--out", folder / "ca"], check=True)
    for name in PEOPLE:
        own = folder / name
        (own / "certs").mkdir(parents=True, exist_ok=True)
        (own / "federation.toml").write_text(own_copy(text, name), encoding="utf-8")
        shutil.copy(rows["labels" if name == "server" else name], own)
        for file in ("ca.crt", f"{name}.crt", f"{name}.key"):
            shutil.copy(folder / "ca" / file, own / "certs")  # with its mode: a key is its owner's alone


def together(processes: Processes, folder: Path, *words: str) -> None:
    """Run the label holder's command with both banks."""
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


def main() -> int:
    """Train, predict, compare, audit."""
    parser = argparse.ArgumentParser(description="Two banks and a label holder on this machine.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/two_banks"))
    folder: Path = parser.parse_args().folder
    predictions = folder / "server" / "predictions.csv"
    if predictions.exists():
        sys.exit(f"{predictions} is there already: delete {folder}, or name another folder.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    processes = Processes()
    try:
        prepare(folder)
        print("\nTraining.", flush=True)
        together(processes, folder, "serve", "federation.toml")
        print("\nPredicting the test rows; the banks join again.", flush=True)
        together(processes, folder, "predict", "federation.toml", "--split", "test")
        accuracy(folder / "server")
        print("\nWhat left bank_a, and what came in.", flush=True)
        processes.start("bank_a", folder / "bank_a", "audit", "run")
        processes.wait("bank_a")
    except KeyboardInterrupt:
        print("\nStopping all; the same command goes on from here.", flush=True)
        return 130
    finally:
        processes.stop(grace=0.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
