"""One party ten times slower than the others: time to a target, where all wait for all and where a quorum is enough.

    python -m benchmarks.asynchronous            # virtual time, in one process, three seeds
    python -m benchmarks.asynchronous network    # seconds, over mutual TLS on loopback, with a party that sleeps

Four parties have a quarter of each digit. The target is an accuracy on test rows at the first record that has it;
before a record all are waited for, so records are two epochs apart in both. Every asynchronous run is replayed from its
record of who reported when, and the models are compared bit for bit. Results are in results/asynchronous.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.federation import network
from efvfl.config.run_file import AgreementConfig, ModelConfig, PartyConfig, RunConfig
from efvfl.core.agreement import Quorum
from efvfl.network.training import participant_data
from efvfl.network.training.participant_data import ParticipantData
from efvfl.runs.build import load_data, make_federation
from efvfl.training.federation import Federation
from efvfl.util.files import write_atomically

OUT = Path(__file__).parent / "results" / "asynchronous.json"
TARGET, EVERY, MOST = 0.95, 2, 200  # accuracy on test rows; epochs between two records, and at most
SLOW, TIMES, QUORUM = "bottom-right", 10.0, 3
REST = 0.05  # seconds that a party's model sleeps over a network
SEEDS = (0, 1, 2)
PIXELS, WIDTH = 16, 16


class Resting(nn.Module):
    """The usual local model with a delay during training."""

    def __init__(self, seconds: float) -> None:
        """Set the delay of every forward pass."""
        super().__init__()
        self.seconds = seconds
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, WIDTH), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Sleep, then compute."""
        if self.training:
            time.sleep(self.seconds)
        h: Tensor = self.layers(x)
        return h


def settings(asynchronous: bool, seed: int, sleeps: bool = False) -> RunConfig:
    """Return one run; where models sleep, that is what takes time, and else the clock is simulated."""
    agreement = AgreementConfig(asynchronous=Quorum(QUORUM) if asynchronous else Quorum())
    model = {t: ModelConfig("benchmarks.asynchronous:Resting", options={"seconds": REST * t}) for t in (1.0, TIMES)}
    slow = PartyConfig(SLOW, model[TIMES]) if sleeps else PartyConfig(SLOW, report_seconds=TIMES)
    made = RunConfig(
        seed=seed, epochs=MOST, batch_size=60, agreement=agreement, party=(slow,), optimizer={"name": "SGD", "lr": 2.0}
    )
    return replace(made, observe_every=EVERY, evaluation="exact", model=model[1.0] if sleeps else made.model)


def made(config: RunConfig, arrivals: Sequence[Sequence[str]] = ()) -> Federation:
    """Return the federation of a run, perhaps a replay, in one process."""
    return make_federation(config, load_data(config, Path()), arrivals=arrivals)


def same_model(left: Federation, right: Federation) -> bool:
    """Whether all models of two federations are equal bit for bit."""
    pairs = zip([left.fusion, *left.models], [right.fusion, *right.models], strict=True)
    return all(torch.equal(a, b) for x, y in pairs for a, b in zip(x.parameters(), y.parameters(), strict=True))


def virtual(asynchronous: bool, seed: int) -> dict[str, Any]:
    """Train to the target in virtual time; return what it took."""
    federation = made(settings(asynchronous, seed))
    for record in federation.train(MOST, EVERY, gradient=False):
        if record.test["accuracy"] >= TARGET:
            break
    took = {"steps": record.step, "seconds": record.simulated_seconds, "accuracy": record.test["accuracy"]}
    if asynchronous:
        again = made(settings(asynchronous, seed), federation.arrivals)
        again.fit(MOST, EVERY, gradient=False)
        took["replay is the same"] = same_model(federation, again)
    return took | {"reached": record.test["accuracy"] >= TARGET, "seed": seed}


def hold(name: str, config: RunConfig) -> ParticipantData:
    """Return what a participant has."""
    return participant_data.load(config, Path(), name)


def networked(asynchronous: bool, seed: int) -> dict[str, Any]:
    """Train to the target over a network, with a party that sleeps; return what it took."""
    config = settings(asynchronous, seed, sleeps=True)
    with tempfile.TemporaryDirectory() as place, network(config, partial(hold, config=config), Path(place)) as serving:
        for record in serving.train():
            if record.test["accuracy"] >= TARGET:
                break
        took = {"steps": record.step, "seconds": round(record.seconds, 1), "accuracy": record.test["accuracy"]}
        if asynchronous:
            quick = replace(settings(asynchronous, seed, sleeps=True), party=())
            quick = replace(quick, model=replace(quick.model, options={"seconds": 0.0}))
            again = made(quick, serving.driver.arrivals.taken)
            again.fit(MOST, EVERY, gradient=False)
            pairs = zip(serving.server.fusion.parameters(), again.fusion.parameters(), strict=True)
            took["replay is the same"] = all(torch.equal(a, b) for a, b in pairs)
    return took | {"reached": record.test["accuracy"] >= TARGET, "seed": seed}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", nargs="?", choices=("virtual", "network"), default="virtual")
    where = parser.parse_args().where
    torch.set_num_threads(1)
    measure, seeds = (virtual, SEEDS) if where == "virtual" else (networked, SEEDS[:1])
    found = {name: [measure(name == "quorum", seed) for seed in seeds] for name in ("all", "quorum")}
    for waits, quorum in zip(found["all"], found["quorum"], strict=True):
        print(f"seed {waits['seed']}: {waits['seconds'] / quorum['seconds']:.1f} times sooner\n  {waits}\n  {quorum}")
    kept = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    write_atomically(OUT, (json.dumps(kept | {where: found}, indent=1) + "\n").encode(), public=True)


if __name__ == "__main__":
    main()
