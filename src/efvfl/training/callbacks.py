"""Code of yours that is called while a federation trains: after every step, and after every epoch that is observed."""

from __future__ import annotations

from dataclasses import dataclass, field

from efvfl.core.batches import ALL, Rows
from efvfl.training.record import Record


@dataclass(frozen=True)
class TrainingStep:
    """One step that is done, as the label holder sees it."""

    number: int  # steps done, from 1
    epoch: int  # epochs done
    loss: float  # on surrogates; that of the step before if no row took part
    bytes_up: int  # since the start of the run
    bytes_down: int
    seconds: float  # wall time of all steps, as in records
    rows: Rows = field(
        default_factory=lambda: ALL
    )  # of the batch, among the training rows: a slice if it is all of them


@dataclass(frozen=True)
class Sending:
    """One block that was compressed and sent, as its sender sees it."""

    step: int  # that it belongs to, from 0
    block: str  # whose: a party's name, or 'block 0'
    direction: str  # up, or down
    residual: float  # squared norm of what was to be sent: h - G with error feedback, h without
    lost: float  # squared norm of what did not arrive of it
    bytes: int  # of its packets, without the message around them

    @property
    def contraction(self) -> float:
        """The alpha that was reached: |C(v) - v|^2 = (1 - alpha) |v|^2; 1 where there was nothing to send."""
        return 1 - self.lost / self.residual if self.residual else 1.0


class Callback:
    """What is called while a federation trains; override what you need.

    It runs where the label holder is, between two steps: training waits for it, and an exception ends training. It sees
    numbers and changes nothing, so a run with callbacks is the same as one without. After a crash, steps since the last
    checkpoint are done, and reported, again.

    >>> from efvfl import Federation
    >>> class Losses(Callback):
    ...     def __init__(self):
    ...         self.seen = []
    ...
    ...     def on_step(self, step):
    ...         self.seen.append(step.loss)
    >>> losses = Losses()
    >>> def watch(federation: Federation):
    ...     return federation.fit(10, callbacks=[losses])
    """

    def on_step(self, step: TrainingStep) -> None:
        """See a step that is done."""

    def on_sent(self, sending: Sending) -> None:
        """See a block that is sent. In one process alone; it is measured only if a callback overrides this."""

    def on_epoch(self, record: Record) -> None:
        """See the record of an epoch."""
