"""The bench: train a federation with somebody watching at both ends, then try every attack that applies.

What an attack finds is measured against the truth, which only one process has. Where an attack has several ways, the
best is taken as if the attacker knew which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efvfl.core import ranges
from efvfl.core.local_model import represent
from efvfl.core.party import Party
from efvfl.errors import ConfigError
from efvfl.runs.attacks import scoring, views
from efvfl.runs.attacks.batch_inversion import inversion_attack
from efvfl.runs.attacks.catalogue import AttackKind
from efvfl.runs.attacks.completion import columns_alone, completion_attack, make_active
from efvfl.runs.attacks.defences import Defence
from efvfl.runs.attacks.generative import generative_attack
from efvfl.runs.attacks.gradients import direction_attack, norm_attack
from efvfl.runs.attacks.inverse_network import inverse_attack
from efvfl.runs.attacks.secret_labels import Outcome, SecretLabels
from efvfl.runs.attacks.spectral import spectral_attack
from efvfl.runs.attacks.views import PartyView, ServerView
from efvfl.training.federation import Federation
from efvfl.util.rng import derive

SHARED = "labels are shared: every party has them"
NO_CLASSES = "labels are no classes, but what {!r} predicts"
NOT_KEPT = "nothing of it is kept: attack the run file, and it is recorded while it trains"
SAVED = "as saved"  # the run of a folder
HELD_OUT = ("test", "validation")  # the first of these that a federation has


@dataclass(frozen=True)
class Attacker:
    """Who attacks, and what it knows beforehand."""

    party: str = ""  # guesses labels, and its columns are guessed by the server; empty: the first without labels
    known: int = 10  # labels of each class that it knows
    shadow: int = 100  # rows whose columns the server knows
    seed: int = 0  # which rows those are, and the attackers' own draws

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        for name, least in (("known", 1), ("shadow", 8)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: expected a number of at least {least}, got {getattr(self, name)}.")
        ranges.check("seed", self.seed)


@dataclass(frozen=True)
class Attacked:
    """What attacks found in one run, and how well its model predicts."""

    name: str  # of the run
    party: str  # that attacked, and was attacked
    outcomes: Mapping[str, Outcome]  # by attack
    scores: Mapping[str, float]  # of the model on held-out rows

    def to_table(self) -> dict[str, object]:
        """Return it as JSON has it: a number, or the reason why there is none."""
        return {
            "name": self.name,
            "party": self.party,
            "found": {name: value for name, value in self.outcomes.items() if isinstance(value, float)},
            "not_applicable": {name: value for name, value in self.outcomes.items() if isinstance(value, str)},
            "scores": dict(self.scores),
        }


@dataclass(frozen=True)
class Subject:
    """A trained federation, and what was seen of it."""

    federation: Federation
    party: Party
    labels: Tensor  # the true ones of the party's training rows
    party_view: PartyView
    server_view: ServerView | None  # None: the server keeps nothing


def train_and_attack(
    build: Callable[[], Federation],
    train: Callable[[Federation], object],
    epochs: int,
    kinds: Sequence[AttackKind],
    attacker: Attacker,
    labels: Tensor | None = None,
    defence: Defence | None = None,
    name: str = "",
) -> Attacked:
    """Train a federation that is watched, and attack it; the active attack trains another one.

    `labels` are the true ones of all training rows, if the federation does not have them.
    """

    def made(active: bool = False) -> Subject:
        federation = build()
        if defence:
            defence(federation)
        party = views.party_of(federation, attacker.party)
        seen = views.watch_party(federation, party, epochs)
        subject = Subject(
            federation, party, own_labels(federation, party, labels), seen, views.watch_uplink(federation, party)
        )
        if active:
            make_active(party)
        train(federation)
        return subject

    subject = made()
    outcomes = attack_all(subject, kinds, attacker)
    if any(kind.name == "active-completion" for kind in kinds):
        secret = secret_labels(subject, attacker)
        outcomes["active-completion"] = secret if isinstance(secret, str) else _completed(made(active=True), secret)
    return Attacked(name, subject.party.name, ordered(outcomes, kinds), held_out_scores(subject.federation))


def attack_saved(
    federation: Federation, initial: nn.Module, kinds: Sequence[AttackKind], attacker: Attacker
) -> Attacked:
    """Attack a federation that was loaded from a run's folder, from what the folder has and nothing else.

    `initial` is the local model of the party as it was before training.
    """
    party = views.party_of(federation, attacker.party)
    subject = Subject(
        federation,
        party,
        own_labels(federation, party),
        views.saved_party_view(federation, party, initial),
        views.saved_server_view(federation, party),
    )
    outcomes = attack_all(subject, kinds, attacker)
    if any(kind.name == "active-completion" for kind in kinds):
        outcomes["active-completion"] = "the party trained as agreed: attack the run file to train it otherwise"
    return Attacked(SAVED, party.name, ordered(outcomes, kinds), held_out_scores(federation))


def own_labels(federation: Federation, party: Party, labels: Tensor | None = None) -> Tensor:
    """Return the labels of the rows that a party has."""
    presence = federation.server.plan.presence
    every = federation.splits["train"].labels if labels is None else labels
    return every[presence.masks[party.name]] if presence else every


def ordered(outcomes: Mapping[str, Outcome], kinds: Sequence[AttackKind]) -> dict[str, Outcome]:
    """Return outcomes in the order of the attacks."""
    return {kind.name: outcomes[kind.name] for kind in kinds if kind.name in outcomes}


def secret_labels(subject: Subject, attacker: Attacker) -> SecretLabels | str:
    """Return what the party is to find out; or why there is nothing."""
    loss = subject.federation.server.loss.name
    classes = scoring.classes_of(subject.labels, loss)
    if not classes:
        return NO_CLASSES.format(loss)
    if not subject.federation.server.plan.agreement.private:
        return SHARED
    labels = subject.labels.long()
    seed = derive(attacker.seed, "known") % 2**31
    return SecretLabels(labels, classes, scoring.some_of_each(labels, attacker.known, seed), attacker.seed)


def attack_all(subject: Subject, kinds: Sequence[AttackKind], attacker: Attacker) -> dict[str, Outcome]:
    """Return the outcome of every attack but the active one."""
    found: dict[str, Outcome] = {}
    secret = secret_labels(subject, attacker)
    for kind in kinds:
        if kind.name == "active-completion":
            continue
        if kind.about == "columns":
            found[kind.name] = _COLUMNS[kind.name](subject, attacker)
        elif kind.name == "shared-labels":
            found[kind.name] = _read(subject)
        else:
            found[kind.name] = secret if isinstance(secret, str) else _LABELS[kind.name](subject, secret)
    return found


def _read(subject: Subject) -> Outcome:
    """How well labels are told by those that a party was given, which may have been randomised."""
    server = subject.federation.server
    classes = scoring.classes_of(subject.labels, server.loss.name)
    if server.plan.agreement.private or not classes:
        return "labels are private: none was given to it" if classes else NO_CLASSES.format(server.loss.name)
    given = own_labels(subject.federation, subject.party, server.labels)
    return scoring.mean_auc(subject.labels.long(), F.one_hot(given.long(), classes).double())


def _heard(attack: Callable[[Subject, SecretLabels], Outcome]) -> Callable[[Subject, SecretLabels], Outcome]:
    """Return an attack that applies only where cotangents were heard."""
    return lambda subject, secret: attack(subject, secret) if subject.party_view.hears else NOT_KEPT


def _completed(subject: Subject, secret: SecretLabels) -> Outcome:
    return completion_attack(subject.party_view.model, subject.party_view.columns, secret)


def _directed(subject: Subject, secret: SecretLabels) -> Outcome:
    view = subject.party_view
    followed = len(view.heard) > 1  # a memory has a single visit, of many steps
    return direction_attack(view.visits, secret, view.batches if followed else None, view.per_epoch)


_LABELS: Mapping[str, Callable[[Subject, SecretLabels], Outcome]] = {
    "norm": _heard(lambda subject, secret: norm_attack(subject.party_view.visits, secret)),
    "direction": _heard(_directed),
    "spectral": lambda subject, secret: spectral_attack(
        represent(subject.party_view.model, subject.party_view.columns), secret
    ),
    "completion": _completed,
    "batch-inversion": _heard(lambda subject, secret: inversion_attack(subject.party_view, secret)),
    "columns-alone": lambda subject, secret: columns_alone(
        subject.party_view.initial, subject.party_view.columns, secret
    ),
}


def _shadow(rows: int, attacker: Attacker) -> Tensor:
    """Return the rows whose columns the server knows: as many as it is given, and at most half."""
    draws = torch.Generator().manual_seed(derive(attacker.seed, "shadow") % 2**31)
    return torch.randperm(rows, generator=draws)[: min(attacker.shadow, rows // 2)]


def _training_rows(subject: Subject, attacker: Attacker, generated: bool) -> Outcome:
    view, columns = subject.server_view, subject.party_view.columns
    if view is None:
        return NOT_KEPT
    if generated:
        return generative_attack(view.last, view.mean, columns, subject.party_view.model, attacker.seed)
    return inverse_attack(view.received, columns, _shadow(len(columns), attacker), attacker.seed)


def _held_out_rows(subject: Subject, attacker: Attacker, generated: bool) -> Outcome:
    split = next((name for name in HELD_OUT if name in subject.federation.splits), None)
    if split is None:
        return "there are no held-out rows"
    columns = views.own_columns(subject.federation, subject.party, split)
    received = views.evaluated(subject.federation, subject.party, split)
    if generated:
        return generative_attack(received, None, columns, subject.party_view.model, attacker.seed)
    return inverse_attack(received, columns, _shadow(len(columns), attacker), attacker.seed)


def _without_uplink(subject: Subject, attacker: Attacker) -> Outcome:
    """What the server would guess if the party had sent nothing."""
    federation, labels, columns = subject.federation, subject.labels, subject.party_view.columns
    classes = scoring.classes_of(labels, federation.server.loss.name)
    known = [F.one_hot(labels.long(), classes) if classes else labels.reshape(len(labels), -1)]
    plan = federation.server.plan
    if plan.label_holder and plan.presence is None:
        known.append(views.own_columns(federation, federation.parties[plan.label_holder]).flatten(1))
    return inverse_attack(
        torch.cat([part.to(columns.dtype) for part in known], dim=1),
        columns,
        _shadow(len(columns), attacker),
        attacker.seed,
    )


_COLUMNS: Mapping[str, Callable[[Subject, Attacker], Outcome]] = {
    "inverse": lambda subject, attacker: _training_rows(subject, attacker, generated=False),
    "generative": lambda subject, attacker: _training_rows(subject, attacker, generated=True),
    "inverse-held-out": lambda subject, attacker: _held_out_rows(subject, attacker, generated=False),
    "generative-held-out": lambda subject, attacker: _held_out_rows(subject, attacker, generated=True),
    "without-uplink": _without_uplink,
}


def held_out_scores(federation: Federation) -> dict[str, float]:
    """Return how well the model predicts held-out rows: the metric of its loss, and the AUC where there are classes."""
    split = next((name for name in HELD_OUT if name in federation.splits), None)
    if split is None:
        return {}
    loss, labels = federation.server.loss, federation.splits[split].labels
    output = federation.held_out_output(split)
    found = {loss.metric_name: loss.metric(output, labels)}
    if classes := scoring.classes_of(labels, loss.name):
        both = output if output.shape[1] > 1 else torch.cat([-output, output], dim=1)
        found["auc"] = scoring.mean_auc(labels.long(), both[:, : max(classes, both.shape[1])])
    return found
