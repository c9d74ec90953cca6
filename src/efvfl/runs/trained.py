"""A trained run that another one starts from: its parameters, and how its columns became numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from efvfl.errors import DataError
from efvfl.models.mlp import Skipping
from efvfl.models.warm_start import LabelledTensor, LabelledTensors, LabelsTensors, Outcome, State, start_from

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder

log = logging.getLogger("efvfl")

HEAD = "head."  # what the keys of a fusion model's head begin with in its state


@dataclass(frozen=True)
class TrainedRun:
    """What one folder has of a trained run: all of it, or one participant's part."""

    folder: Path
    widths: Mapping[str, int]  # of all its parties' representations, in their order
    models: Mapping[str, State] = field(default_factory=dict)  # of local models, by party
    fusion: State = field(default_factory=dict)  # empty at a party
    encoders: Mapping[str, Encoder] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)  # over a network: by which two ends know the same run
    teller: Callable[[str], None] | None = None  # gets a sentence about what was kept; None: the log has it

    def say(self, texts: Iterable[str]) -> None:
        """Tell what was kept."""
        text = f"Warm start from {self.folder}: {'; '.join(texts)}."
        self.teller(text) if self.teller else log.info("%s", text)

    def came_and_went(self, names: Collection[str]) -> list[str]:
        """Return which parties are new, and which are gone, if these take part now."""
        new = [f"{name}: new" for name in names if name not in self.widths]
        return new + [f"{name}: gone" for name in self.widths if name not in names]

    def give_model(self, name: str, model: nn.Module, encoder: Encoder | None) -> str:
        """Give a party's model what fits of the trained one; return what that is."""
        if name not in self.models:
            return f"{name}: starts fresh, because there is nothing of it here"
        old, before = self.models[name], self.encoders.get(name)
        if encoder and before and not set(_names(encoder)) & set(_names(before)):
            return f"{name}: starts fresh, because it has no column of before"
        now, then = _labelled(model, encoder, model.state_dict()), _labelled(model, before, old)
        outcome = start_from(model, old, now, then)
        return f"{name}: {_text(outcome, _names(encoder), _names(before))}"

    def give_head(self, head: nn.Module, combine: str, widths: Mapping[str, int]) -> str:
        """Give the head of the fusion model what fits of the trained one; return what that is."""
        old = {key.removeprefix(HEAD): tensor for key, tensor in self.fusion.items() if key.startswith(HEAD)}
        named = combine == "concat"
        now, before = (_inputs(head, of, sum(widths.values())) if named else {} for of in (widths, self.widths))
        outcome = start_from(head, old, now, before)
        new = [name for name in widths if name not in self.widths] if named else []
        text = {
            "kept": "kept",
            "partly": f"kept, the columns of {', '.join(new)} start fresh",
            "fresh": "starts fresh, because it does not fit the trained one",
        }
        return f"fusion model: {text[outcome]}"


def read_encoder(path: Path) -> Encoder:
    """Return an encoder that a run has left."""
    from efvfl.data.tables.encode import Encoder  # late: it brings polars, which arrays do without

    try:
        return Encoder.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}. Put a good copy back.") from error


def _labelled(model: nn.Module, encoder: Encoder | None, state: State) -> LabelledTensors:
    return model.labelled_tensors(encoder, state) if encoder and isinstance(model, LabelsTensors) else {}


def _inputs(head: nn.Module, widths: Mapping[str, int], combined: int) -> LabelledTensors:
    """Return which inputs of a head belong to which party; of a head that is not ours nobody knows.

    A head with more inputs than were `combined` is told who is present: a further one for each party.
    """
    layers = head.layers if isinstance(head, Skipping) else head
    first = layers[1] if isinstance(layers, nn.Sequential) and len(layers) > 1 else None  # after Flatten
    if not isinstance(first, nn.Linear):
        return {}
    inputs = [(name, i) for name, width in widths.items() for i in range(width)]
    inputs += [(name, -1) for name in widths] if first.in_features > combined else []
    keys = ("layers.1.weight", "linear.weight") if isinstance(head, Skipping) else ("1.weight",)
    return {key: LabelledTensor(key, (None, inputs)) for key in keys}


def _names(encoder: Encoder | None) -> list[str]:
    return [column.name for column in encoder.columns] if encoder else []


def _text(outcome: Outcome, now: list[str], before: list[str]) -> str:
    """Say what became of a local model."""
    if outcome == "fresh":
        return "starts fresh, because its model does not fit the trained one"
    new, gone = len(set(now) - set(before)), len(set(before) - set(now))
    parts = [f"{new} new column{'s start' if new > 1 else ' starts'} fresh"] if new else []
    parts += [f"{gone} column{'s are' if gone > 1 else ' is'} gone"] if gone else []
    if outcome == "partly" and not new:
        parts.append("what is new in its model starts fresh")
    return ", ".join(["kept", *parts])


def module_state(block: Mapping[str, Any]) -> State:
    """Return the parameters in a block's saved state, without its optimiser."""
    return dict(block["module"])
