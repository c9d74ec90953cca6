"""An airline, an aircraft registry and a weather service, as three processes on this machine: which flights are late?

    python examples/flights/run.py [FOLDER]

Everything goes to FOLDER (runs/flights). Ctrl-C stops all processes; the same command continues from there.
"""

import sys
from pathlib import Path

from make_tables import make_tables, package_tables

sys.path.append(str(Path(__file__).parent.parent))
from processes import Processes, equip, free_port, tell

HERE = Path(__file__).parent
FILE = "federation.toml"
OTHERS = ("planes", "weather")


def together(
    processes: Processes, folder: Path, airline: tuple[str, ...], command: str, others: tuple[str, ...] = OTHERS
) -> None:
    """Run a command at the airline together with one at each of the others."""
    rest = ("--dir", "run", "--address", f"127.0.0.1:{free_port()}")
    processes.start("airline", folder / "airline", *airline, *rest)
    for name in others:
        processes.start(name, folder / name, command, FILE, "--party", name, *rest)
    processes.wait("airline")
    processes.stop(grace=3.0)


def story(processes: Processes, folder: Path) -> None:
    """Align, train, see what each is worth, predict with all and without one, audit."""

    def alone(name: str, *words: str) -> None:
        processes.start(name, folder / name, *words)
        processes.wait(name)
        processes.stop(grace=0.0)

    print(f"Making tables, certificates and a copy of the file for each in {folder}.", flush=True)
    tables = {path.stem: path for path in make_tables(folder / "tables", package_tables())}
    equip(folder, HERE / FILE, tables, {"airline": "server"})
    print("\nWho has a record of which flights?", flush=True)
    together(processes, folder, ("align", FILE), "align")
    print("\nTraining.", flush=True)
    together(processes, folder, ("serve", FILE, "--no-alone"), "join")
    print("\nHow well does every subset predict, and what is each worth? The airline knows already.", flush=True)
    alone("airline", "value", "run")
    print("\nWhich columns matter? The others join again; only the registry tells the airline names.", flush=True)
    together(processes, folder, ("value", FILE, "--columns"), "join")
    print("\nThe weather service sees its own columns.", flush=True)
    alone("weather", "value", "run")
    print("\nThe registry is away: the airline predicts the test rows with the weather service alone.", flush=True)
    without = ("predict", FILE, "--split", "test", "--wait", "20", "--out", "without_planes.csv")
    together(processes, folder, without, "join", ("weather",))
    print("\nThe registry is back: the same rows with all three.", flush=True)
    together(processes, folder, ("predict", FILE, "--split", "test", "--wait", "60"), "join")  # no longer than needed
    print("\nWhat left the registry.", flush=True)
    alone("planes", "audit", "run")


if __name__ == "__main__":
    title = "An airline, an aircraft registry and a weather service on this machine."
    sys.exit(tell(title, "runs/flights", "airline/predictions.csv", story))
