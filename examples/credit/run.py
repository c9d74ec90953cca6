"""A bank and a telephone company, as two processes on this machine: from two CSV files to predictions.

    python examples/credit/run.py [FOLDER]

Everything goes to FOLDER (runs/credit). Ctrl-C stops all processes; the same command goes on from there.
"""

import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from make_tables import make_tables

sys.path.append(str(Path(__file__).parent.parent))
from processes import EFVFL, Processes, free_port, own_copy

HERE = Path(__file__).parent
FILE = "federation.toml"


def prepare(folder: Path) -> None:
    """Give each what it has before the start: its file, its table, its key and the CA's certificate."""
    print(f"Making tables, certificates and a copy of the file for each in {folder}.", flush=True)
    text = (HERE / FILE).read_text(encoding="utf-8")
    tables = {path.stem: path for path in make_tables(folder / "tables")}
    subprocess.run([*EFVFL, "certs", HERE / FILE, "--out", folder / "ca"], check=True)
    for name, identity in (("bank", "server"), ("telco", "telco")):
        own = folder / name
        (own / "certs").mkdir(parents=True, exist_ok=True)
        (own / FILE).write_text(own_copy(text, name), encoding="utf-8")
        shutil.copy(tables[name], own)
        for file in ("ca.crt", f"{identity}.crt", f"{identity}.key"):
            shutil.copy(folder / "ca" / file, own / "certs")  # with its mode: a key is its owner's alone


def together(processes: Processes, folder: Path, bank: tuple[str, ...], telco: str) -> None:
    """Run a command of the bank's with one of the telephone company's."""
    rest = ("--dir", "run", "--address", f"127.0.0.1:{free_port()}")
    processes.start("bank", folder / "bank", *bank, *rest)
    processes.start("telco", folder / "telco", telco, FILE, "--party", "telco", *rest)
    processes.wait("bank")
    processes.stop(grace=3.0)


def main() -> int:
    """Look, align, train, predict, report, audit."""
    parser = argparse.ArgumentParser(description="A bank and a telephone company on this machine.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/credit"))
    folder: Path = parser.parse_args().folder
    predictions = folder / "bank" / "predictions.csv"
    if predictions.exists():
        sys.exit(f"{predictions} is there already: delete {folder}, or name another folder.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    processes = Processes()

    def alone(name: str, *words: str) -> None:
        processes.start(name, folder / name, *words)
        processes.wait(name)
        processes.stop(grace=0.0)

    try:
        prepare(folder)
        print("\nThe bank looks at its table.", flush=True)
        alone("bank", "inspect", "bank.csv", "--id", "customer", "--label", "default")
        print("\nWho is a customer of both?", flush=True)
        together(processes, folder, ("align", FILE), "align")
        print("\nTraining.", flush=True)
        together(processes, folder, ("serve", FILE), "join")
        print("\nPredicting the test rows; the telephone company joins again.", flush=True)
        together(processes, folder, ("predict", FILE, "--split", "test"), "join")
        print("\nThe bank's report, and what left the telephone company.", flush=True)
        alone("bank", "report", "run")
        alone("telco", "audit", "run")
    except KeyboardInterrupt:
        print("\nStopping all; the same command goes on from here.", flush=True)
        return 130
    finally:
        processes.stop(grace=0.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
