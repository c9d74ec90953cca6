"""D, block by block: how far what the receivers hold is from what the senders have, after the report under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from efvfl.core.batches import ALL
from efvfl.core.fusion_updates import CompressedSender
from efvfl.core.party import Party
from efvfl.core.server import Server
from efvfl.core.shared_labels import SharedLabelsServer
from efvfl.core.source_columns import OwnColumns
from efvfl.training import measure

FUSION_BLOCK = "block 0"  # the fusion model, where it is compressed; other blocks have their party's name


def by_block(
    server: Server,
    parties: Mapping[str, Party],
    features: Sequence[OwnColumns],
    representations: Sequence[Tensor] | None,
) -> dict[str, float]:
    """Return D_k of every block at the current parameters; the exact representations of all rows may be given.

    Block 0 is among them where the fusion model is compressed. Elsewhere the parties have x0 itself, and D_0 is 0.
    """
    found = _of_fusion(server)
    for place, (name, party) in enumerate(parties.items()):
        rows = None if party.reporting else party.report_rows.rows(party.step)
        h = representations[place] if representations else measure.represent(party.block.module, features[place])
        presence = party.plan.presence
        own = h[presence.masks[name]] if presence else h
        found[name] = measure.distortion(party.up, own, rows, party.step)
    return found


def _of_fusion(server: Server) -> dict[str, float]:
    """Return D_0 = |G_0 - x0|^2 after x0 is sent with the current step, which is tried out."""
    mode = server.label_mode
    if not isinstance(mode, SharedLabelsServer) or not isinstance(mode.sender, CompressedSender):
        return {}
    sender = mode.sender
    vector = sender.block.vector().detach()
    return {FUSION_BLOCK: measure.distortion(sender.channel, vector, ALL, server.step_number)}
