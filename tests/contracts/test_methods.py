"""Named methods: each trains over the network and goes on after a kill, also one of your own in one file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from networks import assert_same, config, networked, reference
from recovery import FrameFate, disturbed, rows, small  # noqa: F401

from efvfl.compress import REGISTRY, base
from efvfl.compress.testing import check_compressor
from efvfl.config.parsing import read
from efvfl.config.run_file import RunConfig
from efvfl.core.memories import MEMORIES
from efvfl.core.memories.testing import check_memory
from efvfl.errors import ConfigError
from efvfl.network.links.frame import FrameKind

Settings = dict[str, Any]

METHODS: dict[str, Settings] = {
    "sent only": {"compressor": {"name": "topk", "ratio": 0.3}, "down": {"name": "sign"}, "cotangents": "sent"},
    "fedbcd": {"name": "fedbcd", "options": {"updates": 3}},
    "celu": {"name": "celu", "options": {"updates": 3, "batches": 2}},
}


@pytest.mark.parametrize("who", ["left", ""])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_goes_on_after_a_kill(name: str, who: str, rows: Path, tmp_path: Path) -> None:
    run = small(rows, save_steps=2, method=METHODS[name])
    fate = FrameFate(FrameKind.REPLY, "out" if who else "in", nth=6)
    assert_same(reference(run), disturbed(run, tmp_path, who, fate))


def test_a_method_in_a_file_is_the_agreement_that_it_stands_for() -> None:
    by_hand = {"cached": {"steps": 2, "batches": 1, "angle": 180.0}}
    runs = [config(method=METHODS["fedbcd"]), config(method={"name": "svfl"}, agreement=by_hand)]
    left, right = (reference(run) for run in runs)
    assert_same(left, right)
    shared = {"labels": "shared"}
    runs = [
        config(method=METHODS["fedbcd"], agreement=shared),
        config(method={"name": "svfl"}, agreement=shared | {"local_steps": 3}),
    ]
    left, right = (reference(run) for run in runs)
    assert_same(left, right)


# A compressor, a memory and a method of one's own, in one file each outside the package.

COMPRESSOR = '''
from dataclasses import dataclass

import numpy as np

from efvfl.compress.base import Compressor, checked, entries, finite_values, register
from efvfl.errors import WireError
from efvfl.wire.packet import Packet


@register("own_half", 250)
@dataclass(frozen=True)
class Half(Compressor):
    """Keep the first half of a block or the second, by a coin toss."""

    def encode(self, block, key=0):
        flat = checked(block)
        half = np.array_split(flat, 2)[key & 1]
        return Packet(self.code, block.dtype, block.shape, bytes((key & 1,)) + half.tobytes())

    @classmethod
    def read(cls, packet):
        if not packet.body or packet.body[0] > 1:
            raise WireError("the first byte is 0 or 1.")
        out = np.zeros(packet.entries, dtype=packet.dtype)
        half = np.array_split(out, 2)[packet.body[0]]
        if len(packet.body) != 1 + half.nbytes:
            raise WireError(f"expected {half.nbytes} bytes of values, got {len(packet.body) - 1}.")
        half[:] = finite_values(packet.body[1:], packet.dtype)
        return out.reshape(packet.shape)

    def alpha(self, shape):
        return 0.5

    def paper_bits(self, shape):
        return 16 * entries(shape)
'''
MEMORY = '''
from dataclasses import dataclass

from efvfl.core.memories import Memory, register


@register("own_slow")
@dataclass(frozen=True)
class Slow(Memory):
    """EF21 that takes over a share of every change."""

    share: float = 0.5

    def residual(self, before, value):
        return (value - before.g) / self.share

    def after(self, g, decoded):
        return g + self.share * decoded
'''
METHOD = '''
from __future__ import annotations

from efvfl import CachedSteps, Link, Method


def slow(compressor, memory, down=None, again: int = 1) -> Method:
    """A link of one's own up and down, and further updates between rounds."""
    return Method("slow", Link(compressor, memory), Link(down or compressor), cached=CachedSteps(again, batches=2))


def nothing() -> int:
    return 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A method in three files of one's own, as a run file names it."""
    for name, text in (("compressor", COMPRESSOR), ("memory", MEMORY), ("method", METHOD)):
        (tmp_path / f"own_{name}_of_a_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield {
        "name": "own_method_of_a_test:slow",
        "compressor": {"name": "own_compressor_of_a_test:Half"},
        "memory": {"name": "own_memory_of_a_test:Slow", "share": 0.8},
        "options": {"again": 2},
    }
    REGISTRY.pop("own_half", None)
    base._BY_CODE.pop(250, None)
    MEMORIES.pop("own_slow", None)
    for name in set(sys.modules) - known:
        if name.endswith("_of_a_test"):
            del sys.modules[name]


def test_ones_own_in_three_files_trains_over_the_network(own: Settings, tmp_path: Path) -> None:
    run = config(method=own)
    outcome = reference(run)
    assert_same(outcome, networked(run, tmp_path / "run"))
    assert outcome.server["cached"], "the method's own cached steps are taken"
    check_compressor(REGISTRY["own_half"]())
    check_memory(MEMORIES["own_slow"]())


def test_ones_own_goes_on_after_a_kill(own: Settings, rows: Path, tmp_path: Path) -> None:
    run = small(rows, save_steps=2, method=own)
    fate = FrameFate(FrameKind.REPLY, "out", nth=6)
    assert_same(reference(run), disturbed(run, tmp_path / "killed", "left", fate))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"name": "own_method_of_a_test:nothing", "compressor": {}, "memory": {}, "options": {}}, "compressor is set"),
        ({"options": {"agan": 2}}, "method.options: unknown key 'agan'. Did you mean 'again'"),
        ({"options": {"again": "x"}}, "method.options: again: expected a whole number, got 'x'"),
        ({"options": {"again": -1}}, "cached.steps: expected at least 0"),
        ({"first": {"name": "sign"}}, "method.first is set, but it would have no effect"),
        ({"name": "own_method_of_a_test:METHODS"}, "cannot import the method"),
        ({"name": "math:pi"}, "expected a function that returns an efvfl.Method, got 3.14"),
        ({"name": "math:sqrt"}, "method.compressor is set"),
    ],
)
def test_what_ones_own_does_not_take_is_refused(own: Settings, change: Settings, found: str) -> None:
    run = config(method=own | change)
    with pytest.raises(ConfigError, match=found):
        run.method.build()


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ({"name": "fedbc"}, "method.name: unknown method 'fedbc'. Did you mean 'fedbcd'"),
        ({"name": "fedbcd", "options": {"update": 4}}, "method.options: unknown key 'update'. Did you mean 'updates'"),
        ({"name": "fedbcd", "options": {"updates": "x"}}, "updates: expected a whole number, got 'x'"),
        ({"name": "fedbcd", "options": {"updates": 0}}, "method.updates: expected at least 1, got 0"),
        ({"name": "efvfl", "options": {"updates": 4}}, "unknown key 'updates'. Nothing can be set here"),
        ({"name": "celu", "options": {"angle": 120}}, "cached.angle: expected at most 90 degrees"),
    ],
)
def test_options_that_a_method_does_not_have_are_refused_as_the_file_is_read(method: Settings, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        read(RunConfig, {"method": method}, "case")
