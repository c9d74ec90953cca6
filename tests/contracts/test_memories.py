"""One contract for all memories: a new one is tested by being registered."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Fate, assert_same, config, networked, reference
from problems import everything, memories, problem, same
from recovery import FrameFate, disturbed, rows, small  # noqa: F401
from torch import Tensor

from efvfl import (
    EF14,
    QSGD,
    Agreement,
    Decay,
    EControl,
    ErrorFeedback,
    Link,
    Memory,
    Momentum,
    Quorum,
    SharedLabels,
    TopK,
)
from efvfl import efvfl as method_of
from efvfl.core.memories import MEMORIES, Before, register
from efvfl.core.memories.testing import check_memory
from efvfl.core.memory import Keeping, MemoryEnd
from efvfl.errors import CheckpointError, ConfigError
from efvfl.network import handshake
from efvfl.network.links.frame import FrameKind
from efvfl.util import checkpoint

NAMES = sorted(MEMORIES)
TOPK = {"name": "topk", "ratio": 0.2}
QUANTISED = {"name": "qsgd", "bits": 4}
CASES: dict[str, dict[str, Any]] = {
    "private": {"method": {"down": QUANTISED}},
    "relay": {"agreement": {"labels": "shared", "fusion": "compress"}, "method": {"fusion": QUANTISED}},
    "aggregate": {"agreement": {"labels": "shared", "downlink": "aggregate", "reports": "all", "local_steps": 2}},
    "window": {"agreement": {"pipeline": 3}, "batch_order": "independent", "method": {"down": TOPK}},
    "evaluated": {"evaluation": "compressed", "network": {"save_steps": 1}},
}


def settings(name: str, case: str = "private", **more: Any) -> dict[str, Any]:
    method = {"name": "efvfl", "compressor": TOPK, "memory": {"name": name}} | CASES[case].get("method", {})
    return CASES[case] | {"method": method} | more


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str) -> None:
    check_memory(MEMORIES[name]())


@pytest.mark.parametrize("memory", [Momentum(1.0), Momentum(0.01), EControl(1.0), Decay(0.0), Decay(1.0)], ids=str)
def test_contract_at_the_ends_of_knobs(memory: Memory) -> None:
    check_memory(memory)


@pytest.mark.parametrize("case", [c if c == "private" else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_over_wires_equals_the_run_in_one_process(name: str, case: str, tmp_path: Path) -> None:
    run = config(**settings(name, case))
    assert_same(reference(run), networked(run, tmp_path))


@pytest.mark.parametrize("who", ["", "left"], ids=["server", "party"])
@pytest.mark.parametrize("name", NAMES)
def test_who_is_killed_goes_on_from_its_checkpoint(rows: Path, name: str, who: str, tmp_path: Path) -> None:
    run = small(rows, save_steps=2, **settings(name))
    fate: Fate = FrameFate(FrameKind.REPLY, "in" if who == "" else "out", nth=6)
    assert_same(reference(run), disturbed(run, tmp_path, who, fate))
    assert fate.events >= 6


AGREEMENTS = [Agreement(), Agreement(SharedLabels(fusion="compress"), reports="all")]


@pytest.mark.parametrize("agreement", AGREEMENTS, ids=["private", "shared"])
@pytest.mark.parametrize("name", NAMES)
def test_both_ends_are_equal_and_a_run_goes_on_from_its_state(name: str, agreement: Agreement, tmp_path: Path) -> None:
    method = method_of(TopK(0.2), down=QSGD(4), fusion=QSGD(4), memory=MEMORIES[name]())
    mapped = tmp_path if method.up.memory.surrogate or method.up.memory.own else None
    runs = [
        problem(method, torch.float32, agreement=agreement, batch_size=16, wire=wire, mapped=folder)
        for wire, folder in ((True, None), (False, None), (True, mapped))
    ]
    for _ in range(5):
        runs[0].step()
        runs[1].step()
        runs[1].distortion()  # which disturbs nothing
    checkpoint.save(tmp_path / "state", runs[0].state_dict())
    runs[2].load_state_dict(checkpoint.load(tmp_path / "state"))
    for run in runs:
        for step in range(5):
            run.step(hold=step == 4)
        assert all(torch.equal(copies[0], other) for copies in memories(run) for other in copies[1:])
    assert same(everything(runs[0]), everything(runs[1]))
    assert same(everything(runs[0]), everything(runs[2]))


@pytest.mark.parametrize("name", [name for name in NAMES if MEMORIES[name].surrogate])
def test_both_ends_are_equal_where_reports_are_late(name: str) -> None:
    method = method_of(TopK(0.2), down=TopK(0.2), memory=MEMORIES[name]())
    agreement = Agreement(asynchronous=Quorum(2))
    run = problem(method, agreement=agreement, batch_size=16, report_seconds={"party1": 3.5})
    list(run.train(4))
    assert all(torch.equal(copies[0], other) for copies in memories(run) for other in copies[1:])


def test_participants_compare_the_memory_and_its_parameters() -> None:
    def shared(memory: dict[str, Any]) -> dict[str, Any]:
        return handshake.shared_part(config(method={"compressor": TOPK, "memory": memory}), ["a"])

    tables: list[dict[str, Any]] = [{}, {"name": "ef14"}, {"name": "decay"}, {"name": "decay", "keep": 0.5}]
    digests = [handshake.digest(shared(table)) for table in tables]
    assert len(set(digests)) == len(tables)
    assert handshake.digest(shared({"keep": 0.5, "name": "decay"})) == digests[3]


def test_the_sender_alone_saves_what_it_alone_remembers() -> None:
    run = problem(method_of(TopK(0.2), down=TopK(0.2), memory=EControl()), batch_size=16)
    for _ in range(4):
        run.step()
    state = run.state_dict()
    for name in run.parties:
        assert set(state["parties"][name]["up"]["memory"]) == {"g", "own", "sent"}
        assert state["parties"][name]["up"]["memory"]["own"]["e"].any()
        assert set(state["server"]["channels"][name]["memory"]) == {"g"}
        assert set(state["parties"][name]["label_mode"]["down"]["memory"]) == {"g"}


def test_the_state_of_another_memory_is_refused() -> None:
    def end(memory: Memory) -> MemoryEnd:
        return MemoryEnd(memory, (5, 2), torch.float32, Keeping(sends=True))

    with pytest.raises(CheckpointError, match=r"another memory than 'econtrol': expected \['e'\] .* got \['v'\]"):
        end(EControl()).load_state_dict(end(Momentum()).state_dict())
    with pytest.raises(CheckpointError, match=r"has surrogates, but this run's memory 'ef14' has none"):
        end(EF14()).load_state_dict(end(EControl()).state_dict())
    with pytest.raises(CheckpointError, match=r"another memory than 'error_feedback': expected \[\]"):
        end(ErrorFeedback()).load_state_dict(end(EControl()).state_dict())


def test_momentum_and_decay_have_ef21_and_direct_compression_as_their_ends() -> None:
    def run(memory: Memory | None) -> list[Tensor]:
        made = problem(method_of(TopK(0.2), down=QSGD(4), memory=memory), batch_size=16)
        for _ in range(6):
            made.step()
        return [p.detach().clone() for module in (made.fusion, *made.models) for p in module.parameters()]

    plain = run(None)
    assert same(run(Momentum(1.0)), plain)
    assert same(run(Decay(1.0)), plain)
    assert same(run(Decay(0.0)), run(MEMORIES["direct"]()))
    assert not same(run(Momentum(0.5)), plain)


def test_without_loss_every_memory_but_an_average_sends_what_it_is_given() -> None:
    for name, cls in MEMORIES.items():
        end = MemoryEnd(cls(), (4, 2), torch.float64, Keeping(sends=True))
        all_of_them, values = torch.arange(4), torch.randn(5, 4, 2, dtype=torch.float64)
        for visit, value in enumerate(values):
            decoded = end.residual(all_of_them, value)
            end.sent(all_of_them, value, decoded)
            assert torch.allclose(end.absorb(all_of_them, decoded), value) is (name != "momentum" or visit == 0)


# What is refused.


def test_what_does_not_go_together_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": {"memory": {"name": "ef15"}}}, r"there is no memory 'ef15'. Did you mean 'ef14'"),
        ({"method": {"memory": {"name": "momentum", "eta": 2}}}, r"momentum.eta: expected at most 1, got 2"),
        ({"method": {"memory": {"name": "decay", "eta": 0.5}}}, r"memory decay: unknown key 'eta'"),
        ({"method": {"memory": {"eta": 0.5}}}, r"expected a memory with a name, such as"),
        ({"method": {"memory": {"name": "os:path"}}}, r"see docs/adding-a-memory.md"),
    ]
    for more, message in wrong:
        with pytest.raises(ConfigError, match=message):
            config(**more).method.build()
    stale: dict[str, Any] = {"network": {"on_missing": "stale"}}
    narrow: dict[str, Any] = {"agreement": {"memory_dtype": "bfloat16"}}
    clashes: list[tuple[str, dict[str, Any], str]] = [
        ("ef14", narrow, "memory_dtype does not go with a method without surrogates"),
        ("ef14", {"agreement": {"asynchronous": {"reports": 2}}}, "asynchronous does not go with a method without sur"),
        ("ef14", stale, "on_missing = 'stale' does not go with a method without surrogates"),
        ("econtrol", stale, "on_missing = 'stale' does not go with a memory of which the sender holds a part"),
    ]
    for name, more, message in clashes:
        with pytest.raises(ConfigError, match=message):
            config(**settings(name, **more))
    with pytest.raises(ConfigError, match=r"memory: expected one such as ErrorFeedback\(\), got 'ef14'"):
        Link(TopK(0.5), "ef14")  # type: ignore[arg-type]


# The suite refuses what does not fulfil the contract.


@dataclass(frozen=True)
class Remembering(Memory):
    """Forgets that both ends must agree: what is added depends on what only one of them has done."""

    def residual(self, before: Before, value: Tensor) -> Tensor:
        return value - before.g

    def after(self, g: Tensor, decoded: Tensor) -> Tensor:
        return g + decoded + torch.rand(())


@dataclass(frozen=True)
class Spreading(Memory):
    """Mixes rows."""

    def residual(self, before: Before, value: Tensor) -> Tensor:
        return value - before.g.mean(dim=0)


@dataclass(frozen=True)
class Overwriting(Memory):
    """Writes to what it is given."""

    def residual(self, before: Before, value: Tensor) -> Tensor:
        return value.sub_(before.g)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Remembering, "both ends have different surrogates|does not send the same twice"),
        (Spreading, "depends on the others beside it"),
        (Overwriting, "does not return the same twice|changes the value"),
    ],
)
def test_what_breaks_the_contract_is_found(wrong: type[Memory], message: str) -> None:
    with pytest.raises(AssertionError, match="is not registered"):
        check_memory(wrong())
    try:
        register("wrong")(wrong)
        with pytest.raises(AssertionError, match=message):
            check_memory(wrong())
    finally:
        MEMORIES.pop("wrong", None)


def test_a_name_is_given_once() -> None:
    with pytest.raises(ConfigError, match=r"memory 'ef14': expected a name that is not in use, got that of EF14"):
        register("ef14")(Spreading)
    assert MEMORIES["ef14"] is EF14


# A memory of one's own, in one file outside the package.

OWN = '''
from dataclasses import dataclass

from efvfl.core.memories import Memory, register


@register("own_clipped")
@dataclass(frozen=True)
class Clipped(Memory):
    """EF21 that never adds more than `most` to an entry, and makes up for a share of what it cut off."""

    own = ("cut",)
    most: float = 5.0

    def residual(self, before, value):
        return value - before.g + 0.1 * before.own["cut"]

    def after(self, g, decoded):
        return g + decoded.clamp(-self.most, self.most)

    def remember(self, before, value, surrogate):
        return {"cut": value - surrogate}
'''


def test_ones_own_in_one_file_trains_over_the_network_and_fulfils_the_contract(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: Path,
) -> None:
    (tmp_path / "own_clipped_memory_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    named: Mapping[str, Any] = {"name": "own_clipped_memory_of_a_test:Clipped", "most": 0.3}
    try:
        for number, case in enumerate(("private", "relay")):
            run = config(
                **settings("direct", case) | {"method": settings("direct", case)["method"] | {"memory": named}}
            )
            assert_same(reference(run), networked(run, tmp_path / str(number)))
        check_memory(MEMORIES["own_clipped"]())
        by_name = small(rows, save_steps=2, method={"compressor": TOPK, "memory": {"name": "own_clipped", "most": 0.3}})
        fate = FrameFate(FrameKind.REPLY, "out", nth=6)
        assert_same(reference(by_name), disturbed(by_name, tmp_path / "killed", "left", fate))
        stale = config(method={"memory": named}, network={"on_missing": "stale"})
        with pytest.raises(ConfigError, match="a memory of which the sender holds a part"):
            networked(stale, tmp_path / "stale")
    finally:
        MEMORIES.pop("own_clipped", None)
