"""NVFlare: its Collab API in its simulator, a process for each party; one call to all clients is one step."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import nvflare
import problem
from nvflare.collab import CollabRecipe, collab
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC
from nvflare.recipe.sim_env import SimEnv

TIMEOUT = 60.0  # seconds for one call
NAMES = [f"site-{k + 1}" for k in range(problem.PARTIES)]  # as the simulator calls its clients


def count(cell: Any) -> dict[str, int]:
    """Have the server's cell count what it sends and gets from now on: serialised calls and results, no headers."""
    sent = {"up": 0, "down": 0}

    def add(message: Any, way: str) -> None:
        sent[way] += sum(map(len, message.payload)) if isinstance(message.payload, list) else len(message.payload)

    cell.add_outgoing_request_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, add, "down")
    cell.add_incoming_request_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, add, "up")
    return sent


class Labels:
    """The server."""

    def __init__(self, out: str, warm: int, steps: int) -> None:
        """Write what was measured to `out`."""
        self.out, self.warm, self.steps = out, warm, steps

    @collab.main
    def train(self) -> None:
        """Train."""
        sent = count(collab.fl_ctx.get_engine().get_cell().core_cell)

        def exchange(cotangents: list[bytes]) -> list[bytes]:
            # The mean gives every party the same cotangent, so one call serves all.
            answers = dict(collab.clients(timeout=TIMEOUT).answer(cotangents[0]))
            return [answers[name] for name in NAMES]

        samples, losses = problem.train(exchange, self.warm, self.steps)
        per_step = {way: total / len(losses) for way, total in sent.items()}
        Path(self.out).write_text(json.dumps([samples, losses, per_step]))


class Columns:
    """A party."""

    def __init__(self) -> None:
        """Learn at the first call who this is."""
        self.party: problem.Party | None = None

    @collab.publish
    def answer(self, cotangent: bytes) -> bytes:
        """Learn and report."""
        if self.party is None:
            self.party = problem.Party(NAMES.index(collab.site_name))
        return self.party.answer(cotangent)


def main() -> None:
    """Measure, and print one line."""
    options = problem.options(argparse.ArgumentParser(description=__doc__))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        server, client = Labels(str(out), options.warm, options.steps), Columns()
        recipe = CollabRecipe("split", server=server, client=client, min_clients=problem.PARTIES)
        recipe.execute(SimEnv(num_clients=problem.PARTIES, log_config="error", workspace_root=folder))
        samples, losses, sent = json.loads(out.read_text())
    mode = "Collab API, simulator, a process each"
    print(problem.report("NVFlare", nvflare.__version__, mode, samples, losses, sent, problem.deviation(losses)))


if __name__ == "__main__":
    import on_nvflare  # the simulator's processes import the classes by the name of this file

    on_nvflare.main()
