"""What callbacks are told of every block that is sent in one process: residuals, the contraction reached, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from efvfl.core.channel import Channel, Packets, SendWatch
from efvfl.core.fusion_updates import CompressedSender
from efvfl.core.party import Party
from efvfl.core.private_labels import PrivateLabelsServer
from efvfl.core.server import Server
from efvfl.core.shared_labels import SharedLabelsServer
from efvfl.training.callbacks import Callback, Sending
from efvfl.training.distortions import FUSION_BLOCK
from efvfl.training.measure import squared_norm


def watch(server: Server, parties: Mapping[str, Party], callbacks: Sequence[Callback]) -> None:
    """Have every sending end tell those of the callbacks that want to know, and nobody else."""
    told = [callback for callback in callbacks if type(callback).on_sent is not Callback.on_sent]
    for block, direction, channel in _senders(server, parties):
        channel.watch = _teller(block, direction, told) if told else None


def _senders(server: Server, parties: Mapping[str, Party]) -> Iterator[tuple[str, str, Channel]]:
    for name, party in parties.items():
        yield name, "up", party.up
    mode = server.label_mode
    if isinstance(mode, PrivateLabelsServer):
        for name, channel in mode.downs.items():
            yield name, "down", channel
    if isinstance(mode, SharedLabelsServer) and isinstance(mode.sender, CompressedSender):
        yield FUSION_BLOCK, "down", mode.sender.channel


def _teller(block: str, direction: str, callbacks: Sequence[Callback]) -> SendWatch:
    def tell(step: int, residual: Tensor, decoded: Tensor, packets: Packets) -> None:
        size = sum(len(packet.body) for packet in packets)
        lost = squared_norm([decoded - residual])
        sending = Sending(step, block, direction, squared_norm([residual]), lost, size)
        for callback in callbacks:
            callback.on_sent(sending)

    return tell
