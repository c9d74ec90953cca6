"""Whether what a party is sent contradicts the epsilon of randomised labels, over many runs of whole federations.

Every label is a tossed coin. A party sees all cotangents of a row, over several epochs, and says what label it has: two
data sets that differ in that label alone, all others being tossed. From how often it says 1 in either case a lower
confidence bound on epsilon follows, which must not be above what is stated.
"""

from collections.abc import Callable
from dataclasses import replace
from math import log

import pytest
import torch
from scipy.stats import beta  # type: ignore[import-untyped]
from torch import Tensor, nn

from efvfl import Federation, LabelRelease, Message, Optimizer, Protection, Setup, Training, federate
from efvfl.core.label_mechanism import RandomisedResponse
from efvfl.core.label_release import from_seed
from efvfl.core.losses import LOSSES
from efvfl.core.open_reports import OpenReport
from efvfl.core.targets import Targets

EPSILON, RUNS, EPOCHS, ROWS = 1.0, 40, 5, 16
DOUBT = 1e-4  # of each of the two bounds: a test that is right fails once in five thousand
COLUMNS = {name: torch.linspace(-1, 1, ROWS).unsqueeze(1) * scale for name, scale in (("holder", 1.0), ("guest", 0.5))}
Fault = Callable[[Federation, LabelRelease, int], None]


def federation(draw: int, corrects: bool) -> tuple[Federation, LabelRelease]:
    """A federation of two parties on a few rows with tossed labels."""
    labels = torch.randint(2, (ROWS,), generator=torch.Generator().manual_seed(draw)).float()
    protect = Protection(label_epsilon=EPSILON, label_correction=corrects)
    loss = LOSSES["binary_cross_entropy"]
    release = LabelRelease.draw(protect, loss, {"train": labels}, from_seed(draw))
    models = {name: nn.Linear(1, 1) for name in COLUMNS}
    head = nn.Linear(1, 1)
    for module in (*models.values(), head):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
    training = Training(Optimizer("SGD", {"lr": 0.1}), loss="binary_cross_entropy")
    setup = Setup(label_holder="holder", protect=protect, release=release)
    return federate(COLUMNS, labels, models, head, training=training, setup=setup), release


def seen(draw: int, corrects: bool, fault: Fault | None) -> tuple[Tensor, Tensor]:
    """Return the labels, and which rows the guest takes for a 1 from all that it is sent of them."""
    run, release = federation(draw, corrects)
    found: list[Tensor] = []
    guest = run.parties["guest"].label_mode
    honest = guest.receive

    def receive(answer: Message, report: OpenReport) -> None:
        honest(answer, report)
        cotangent = guest.cotangent(report.h, answer.step, 0)
        assert cotangent is not None
        found.append(cotangent[:, 0] < 0)

    guest.receive = receive  # type: ignore[method-assign]
    for epoch in range(EPOCHS):
        if fault:
            fault(run, release, draw * EPOCHS + epoch)
        run.step(hold=True)
    return release.truth["train"] > 0, torch.stack(found).double().mean(0) > 0.5


def lower_bound(corrects: bool = True, fault: Fault | None = None) -> float:
    """Return an epsilon that is below the true one but for a doubt, from how often rows of either label look like 1."""
    pairs = [seen(draw, corrects, fault) for draw in range(RUNS)]
    labels, taken = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    (ones, of_ones), (zeros, of_zeros) = ((int(taken[of].sum()), int(of.sum())) for of in (labels, ~labels))
    likely = beta.ppf(DOUBT, ones, of_ones - ones + 1)
    unlikely = beta.ppf(1 - DOUBT, zeros + 1, of_zeros - zeros)
    return log(likely / unlikely)


def told(run: Federation, labels: Tensor) -> None:
    run.server.targets = Targets(labels)


def drawn_in_every_epoch(run: Federation, release: LabelRelease, number: int) -> None:
    protect, loss = Protection(label_epsilon=EPSILON), LOSSES["binary_cross_entropy"]
    anew = LabelRelease.draw(protect, loss, release.truth, from_seed(10**6 + number))
    told(run, anew.labels["train"])


def kept_too_often(run: Federation, release: LabelRelease, number: int) -> None:
    wrong = RandomisedResponse.within(3 * EPSILON, 2)
    draws = from_seed(number // EPOCHS)([f"train:{i}" for i in range(ROWS)])
    told(run, wrong.randomise(release.truth["train"], draws))


def not_at_all(run: Federation, release: LabelRelease, number: int) -> None:
    told(run, release.truth["train"])


@pytest.mark.parametrize("corrects", [True, False])
def test_what_a_party_is_sent_does_not_contradict_epsilon(corrects: bool) -> None:
    bound = lower_bound(corrects)
    assert EPSILON / 3 < bound <= EPSILON  # and the attack is no straw man


@pytest.mark.parametrize("fault", [drawn_in_every_epoch, kept_too_often, not_at_all])
def test_a_planted_fault_contradicts_epsilon(fault: Fault) -> None:
    assert lower_bound(fault=fault) > EPSILON


def test_the_bound_is_about_the_statement() -> None:
    run, release = federation(0, True)
    assert run.fit(1)[0].spent["labels"]["epsilon"] == release.mechanism.epsilon <= EPSILON
    assert replace(release, simulated=False).accountant.once == release.mechanism.epsilon
