"""A bank and a telephone company, as two processes on this machine: from two CSV files to predictions.

    python examples/credit/run.py [FOLDER]

Everything goes to FOLDER (runs/credit). Ctrl-C stops all processes; the same command continues from there.
"""

import sys
from pathlib import Path

from make_tables import make_tables

sys.path.append(str(Path(__file__).parent.parent))
from processes import Processes, equip, free_port, tell

HERE = Path(__file__).parent
FILE = "federation.toml"


def together(processes: Processes, folder: Path, bank: tuple[str, ...], telco: str) -> None:
    """Run a command at the bank together with one at the telephone company."""
    rest = ("--dir", "run", "--address", f"127.0.0.1:{free_port()}")
    processes.start("bank", folder / "bank", *bank, *rest)
    processes.start("telco", folder / "telco", telco, FILE, "--party", "telco", *rest)
    processes.wait("bank")
    processes.stop(grace=3.0)


def story(processes: Processes, folder: Path) -> None:
    """Inspect, align, train, predict, report, audit."""

    def alone(name: str, *words: str) -> None:
        processes.start(name, folder / name, *words)
        processes.wait(name)
        processes.stop(grace=0.0)

    print(f"Making tables, certificates and a copy of the file for each in {folder}.", flush=True)
    tables = {path.stem: path for path in make_tables(folder / "tables")}
    equip(folder, HERE / FILE, tables, {"bank": "server"})
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


if __name__ == "__main__":
    title = "A bank and a telephone company on this machine."
    sys.exit(tell(title, "runs/credit", "bank/predictions.csv", story))
