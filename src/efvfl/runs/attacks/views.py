"""What a curious participant has of a training: everything that it was sent, and its own columns and model.

A view changes nothing: it looks at what arrives at one end, and a federation that is watched gives the same model bit
for bit.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from efvfl.compress import decode
from efvfl.core.batches import BatchRows, Rows
from efvfl.core.channel import Channel, Packets
from efvfl.core.evaluation import FINE
from efvfl.core.open_reports import OpenReport
from efvfl.core.party import Party
from efvfl.errors import ConfigError
from efvfl.training.federation import Federation
from efvfl.wire.message import Message

MOST_BYTES = 2 << 30  # of what is remembered of a training


@dataclass
class PartyView:
    """What a party has that wants to know the labels."""

    columns: Tensor  # its own, of its training rows
    model: nn.Module  # its local model, which goes on learning
    initial: nn.Module  # as it was when the view began
    batches: BatchRows  # the schedule as it sees it
    per_epoch: int  # steps of an epoch
    heard: Tensor  # the derivative of a row's own loss by its representation, shape (epochs, rows, width)
    epochs: int = 0  # in which something was heard

    @property
    def visits(self) -> Tensor:
        """What was heard, without epochs that were not trained."""
        return self.heard[: self.epochs]

    @property
    def hears(self) -> bool:
        """Whether anything was."""
        return self.epochs > 0


@dataclass
class ServerView:
    """What the server has of a party whose columns it wants to know."""

    last: Tensor  # of each training row, what the server holds in place of the representation, shape (rows, width)
    total: Tensor  # the sum of that over all visits
    visits: Tensor  # how often each row was reported

    @property
    def mean(self) -> Tensor | None:
        """The mean over the visits of each row; None: there was one at most."""
        return None if int(self.visits.max()) < 2 else self.total / self.visits.clamp(min=1)[:, None]

    @property
    def received(self) -> Tensor:
        """All that is known of a row: its last value beside the mean over its visits."""
        return self.last if self.mean is None else torch.cat([self.last, self.mean], dim=1)


def party_of(federation: Federation, name: str) -> Party:
    """Return a party by name; without a name, the first that does not hold the labels."""
    plan = federation.server.plan
    guests = [each for each in plan.names if each != plan.label_holder]
    if not guests:
        raise ConfigError("expected a party beside the label holder, got none: there is nobody to attack.")
    if name and name not in guests:
        raise ConfigError(f"expected one of the parties {guests} that do not hold the labels, got {name!r}.")
    return federation.parties[name or guests[0]]


def own_columns(federation: Federation, party: Party, split: str = "train") -> Tensor:
    """Return the columns of the rows of a split that a party has."""
    return federation.splits[split].of_party(party.number - 1)[:]


def watch_party(federation: Federation, party: Party, epochs: int) -> PartyView:
    """Return what a party is sent from now on, for so many epochs at most."""
    rows, width = party.batches.samples, party.up.width
    if 4 * max(epochs, 1) * rows * width[0] > MOST_BYTES:
        raise ConfigError(
            f"{epochs:,} epochs of {rows:,} rows are too much to remember here: set data.subset, or fewer epochs."
        )
    view = PartyView(
        own_columns(federation, party),
        party.block.module,
        copy.deepcopy(party.block.module),
        party.batches,
        federation.server.batches.per_epoch,
        torch.zeros(epochs, rows, *width, dtype=party.up.dtype),
    )
    if not federation.server.plan.agreement.private:
        return view  # it has the labels
    mode, honest = party.label_mode, party.label_mode.receive

    def receive(answer: Message, report: OpenReport) -> None:
        honest(answer, report)
        cotangent, epoch = mode.cotangent(report.h, answer.step, 0), answer.step // view.per_epoch
        if cotangent is not None and epoch < len(view.heard):
            rows = torch.arange(len(view.columns))[report.rows]
            view.heard[epoch].index_add_(0, rows, cotangent * federation.server.batches.count(answer.step))
            view.epochs = max(view.epochs, epoch + 1)

    mode.receive = receive  # type: ignore[method-assign]
    return view


def watch_uplink(federation: Federation, party: Party) -> ServerView:
    """Return what the server is sent of a party's rows from now on."""
    channel = federation.server.channels[party.name]
    shape = (party.batches.samples, *channel.width)
    view = ServerView(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape[0]))
    honest = channel.receive
    seen: list[Packets] = [()]

    def receive(rows: Rows, packets: Packets, decoded: Tensor) -> Tensor:
        surrogate = honest(rows, packets, decoded)
        if packets and packets is not seen[0]:  # with shared labels peers receive through the same end
            seen[0] = packets
            view.last[rows] = surrogate.to(view.last.dtype)
            view.total[rows] += surrogate.to(view.total.dtype)
            view.visits[rows] += 1
        return surrogate

    channel.receive = receive  # type: ignore[method-assign]
    return view


def saved_party_view(federation: Federation, party: Party, initial: nn.Module) -> PartyView:
    """Return what a party's own checkpoint has: the memory of its cotangents, if it has one, as a single visit."""
    down = party.label_mode.incoming()
    known = [channel for channel in down if channel.memory.keeps]
    private = federation.server.plan.agreement.private
    empty = torch.zeros(0, party.batches.samples, *party.up.width)
    heard = _memory(known[0])[None] if private and known else empty
    return PartyView(
        own_columns(federation, party),
        party.block.module,
        initial,
        party.batches,
        federation.server.batches.per_epoch,
        heard,
        len(heard),
    )


def saved_server_view(federation: Federation, party: Party) -> ServerView | None:
    """Return what the server's checkpoint has of a party's rows; None: it remembers nothing of them."""
    channel = federation.server.channels[party.name]
    if not channel.memory.keeps:
        return None
    surrogate = _memory(channel)
    return ServerView(surrogate, surrogate, torch.ones(len(surrogate)))


def _memory(channel: Channel) -> Tensor:
    return channel.memory.g.detach().clone().to(channel.dtype)


def evaluated(federation: Federation, party: Party, split: str) -> Tensor:
    """Return what the server is sent of a party's held-out rows when training is over, as the agreement has it.

    Exactly; or rounded finely, where rows are evaluated by messages; with noise, where the party protects its rows.
    """
    h = party.model.represent(own_columns(federation, party, split))
    if party.noise:
        h = party.noise.predict(h, [str(row) for row in range(len(h))])
    if party.evaluation and not party.evaluation.channel.exact and len(h):
        h = torch.from_numpy(decode(FINE.encode(h.numpy()), limit=h.numel())).clone()
    return h
