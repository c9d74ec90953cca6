"""One contract for all transports: a run over wires equals the run in one process, bit for bit, at both ends."""

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from networks import FAULTS, Transport, assert_same, config, networked, reference, with_missing_rows

from efvfl.compress import REGISTRY
from efvfl.core.methods import METHODS as NAMED
from efvfl.data.digits import NAMES
from efvfl.errors import ConfigError, LinkError
from efvfl.network.links.faulty import Faults, FaultyWire
from efvfl.network.links.wire import memory_pair

Settings = dict[str, Any]

KNOBS: dict[str, Settings] = {"topk": {"ratio": 0.2}, "randk": {"ratio": 0.5}, "topk_qsgd": {"ratio": 0.3}}
TOPK = {"name": "topk", "ratio": 0.2}
QSGD = {"name": "qsgd", "bits": 4}
SHARED = {"labels": "shared"}
MODES: dict[str, Settings] = {
    "private": {},
    "relay": {"agreement": SHARED},
    "aggregate": {"agreement": SHARED | {"downlink": "aggregate"}},
}
HOLDER = "bottom-left"
NORMED = {"name": "networks:normed", "width": 4, "options": {"inputs": 16, "width": 4}}
HEAD = {"name": "networks:normed", "options": {"inputs": 4, "width": 10}}


COMPRESSORS: dict[str, Settings] = {name: {"name": name} | KNOBS.get(name, {}) for name in sorted(REGISTRY)}


def every_method(methods: tuple[str, ...] = ("cvfl", "efvfl")) -> dict[str, Settings]:
    """Every registered compressor, with and without memory: a new one is tested by existing.

    Four at a time, as each party may have one of its own.
    """
    found: dict[str, Settings] = {}
    for method, start in product(methods, range(0, len(COMPRESSORS), len(NAMES))):
        parties = dict(zip(NAMES, list(COMPRESSORS)[start:] + list(COMPRESSORS), strict=False))
        compressors = {party: COMPRESSORS[name] for party, name in parties.items()}
        found[f"{method}-{'-'.join(parties.values())}"] = {"name": method, "compressor": TOPK, "parties": compressors}
    return found


SETTINGS: dict[str, Settings] = {
    "svfl": {"name": "svfl"},
    "efvfl-topk": {"compressor": TOPK},
    "cvfl-qsgd": {"name": "cvfl", "compressor": {"name": "qsgd"}},
    **every_method(),
}


def every_agreement() -> dict[str, Settings]:
    """All that participants may agree on with shared labels."""
    found = {}
    choices = product(("relay", "aggregate"), ("send", "replicate", "compress"), ("batch", "all"), (1, 2))
    for downlink, fusion, reports, steps in choices:
        agreement = SHARED | {"downlink": downlink, "fusion": fusion, "reports": reports, "local_steps": steps}
        method = {"compressor": TOPK} | ({"fusion": QSGD} if fusion == "compress" else {})
        found[f"{downlink}-{fusion}-{reports}-{steps}"] = {
            "agreement": agreement | {"digest_every": 2},
            "method": method,
        }
    return found


BOTH: dict[str, Settings] = {  # settings that make sense in both label modes
    "start-exact": {"method": {"compressor": TOPK, "start": "exact"}},
    "start-mean": {"method": {"compressor": TOPK, "start": "mean", "first": {"name": "uniform", "levels": 7}}},
    "start-exact-independent": {"method": {"compressor": TOPK, "start": "exact"}, "batch_order": "independent"},
    "label-holder": {"label_holder": HOLDER},
    "label-holder-first": {"label_holder": "top-left", "method": {"name": "cvfl", "compressor": QSGD}},
    "private-seeds": {
        "private_seed": 7,
        "party": [{"name": "top-right", "private_seed": 8}, {"name": HOLDER, "private_seed": 9}],
        "method": {"compressor": QSGD},
    },
    "full-batch": {"batch_size": 0, "epochs": 5},
    "full-batch-exact": {"batch_size": 0, "epochs": 3, "method": {"compressor": TOPK, "start": "exact"}},
    "independent": {"batch_order": "independent"},
    "observe-every-2": {"observe_every": 2, "epochs": 3},
    "patience": {"patience": 1, "epochs": 4, "optimizer": {"name": "SGD", "lr": 20.0}},
    "no-held-rows": {"data": {"validation": 0.0, "test": 0.0}},
    "momentum": {
        "optimizer": {
            "name": "SGD",
            "lr": 0.3,
            "momentum": 0.9,
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 0.5},
        }
    },
    "adam": {"optimizer": {"name": "Adam", "lr": 0.01, "scheduler": {"name": "CosineAnnealingLR", "T_max": 2}}},
    "normed": {"model": NORMED, "fusion": HEAD},
    "normed-all": {"model": NORMED, "fusion": HEAD, "agreement": {"reports": "all"}},
    "concat": {
        "fusion": {"combine": "concat", "hidden": [8]},
        "party": [{"name": "top-right", "model": {"width": 6, "hidden": [5]}}],
    },
    "sum": {"fusion": {"combine": "sum", "hidden": [8]}},
    "rows": {
        "evaluation": "compressed",
        "party": [{"name": "top-right", "protect": {"clip": 0.5, "noise": 0.2}, "private_seed": 8}],
        "method": {"compressor": TOPK},
    },
    "subsets": {"fusion": {"combine": "concat"}, "agreement": {"subsets": "sampled"}, "method": {"compressor": TOPK}},
    "ramp": {
        "method": {"name": "cvfl", "compressor": {"name": "topk", "ratio": {"start": 0.1, "stop": 1, "steps": 5}}}
    },
}
PRIVATE: dict[str, Settings] = {
    "all-rows": {"agreement": {"reports": "all"}},
    "down-efvfl": {"method": {"compressor": TOPK, "down": QSGD}},
    "down-cvfl": {"method": {"name": "cvfl", "compressor": QSGD, "down": TOPK}},
    "down-all-rows": {"method": {"compressor": TOPK, "down": TOPK}, "agreement": {"reports": "all"}},
    "sent-only": {"method": {"compressor": TOPK, "cotangents": "sent"}},
    "sent-only-both-ways": {
        "method": {"compressor": TOPK, "down": QSGD, "cotangents": "sent"},
        "agreement": {"pipeline": 3},
        "label_holder": HOLDER,
    },
    "down-label-holder": {"method": {"compressor": TOPK, "down": QSGD}, "label_holder": HOLDER},
    "first-visits": {"method": {"compressor": TOPK, "first": {"name": "uniform", "levels": 15}}},
    "cached": {"agreement": {"cached": {"steps": 3, "batches": 2}}, "method": {"compressor": TOPK, "down": TOPK}},
    "fedbcd": {"method": {"name": "fedbcd", "options": {"updates": 3}}},
    "celu": {"method": {"name": "celu", "options": {"updates": 3, "batches": 2}}, "label_holder": HOLDER},
    "cached-label-holder": {"agreement": {"cached": {"steps": 2}}, "label_holder": HOLDER, "model": NORMED},
    "window": {"agreement": {"pipeline": 4}, "method": {"compressor": {"name": "uniform", "levels": 1}}},
    "window-cached": {
        "agreement": {"pipeline": 3, "cached": {"steps": 2, "batches": 3, "angle": 30.0}},
        "batch_order": "independent",  # a row may be in several of the batches that are under way
    },
    "protected": {"protect": {"clip": 0.1, "noise": 0.5}, "label_holder": HOLDER},
    "visits": {"protect": {"visits": {"epsilon": 8.0}}, "label_holder": HOLDER, "method": {"compressor": TOPK}},
    "visits-cached": {
        "protect": {"visits": {"noise": 0.5}},
        "agreement": {"pipeline": 2, "cached": {"steps": 2, "batches": 3}},
        "private_seed": 3,
    },
}
OFTEN = {"network": {"save_steps": 1}}  # every participant saves itself, and forgets, after every step
SHARED_ONLY: dict[str, Settings] = {
    "relay-fedbcd": {"agreement": SHARED, "method": {"name": "fedbcd", "options": {"updates": 3}}},
    "replicate-label-holder": {
        "agreement": SHARED | {"fusion": "replicate", "digest_every": 2},
        "label_holder": HOLDER,
    },
    "replicate-normed": {
        "agreement": SHARED | {"fusion": "replicate", "digest_every": 2, "local_steps": 2},
        "model": NORMED,
        "fusion": HEAD,
        "optimizer": {"name": "Adam", "lr": 0.01, "scheduler": {"name": "ExponentialLR", "gamma": 0.5}},
    },
    "window-replicate": {
        "agreement": SHARED | {"fusion": "replicate", "digest_every": 1, "pipeline": 4},
        "optimizer": {"name": "Adam", "lr": 0.01},
        "observe_every": 2,
        "epochs": 4,
    },
    "window-replicate-aggregate": {
        "agreement": SHARED | {"fusion": "replicate", "downlink": "aggregate", "digest_every": 2, "pipeline": 3},
        "label_holder": HOLDER,
    },
    "compress-private-seed": {
        "agreement": SHARED | {"fusion": "compress", "downlink": "aggregate"},
        "method": {"compressor": TOPK, "fusion": QSGD},
        "private_seed": 5,
    },
    "replicate-private-seed": {"agreement": SHARED | {"fusion": "replicate"}, "private_seed": 5},
}


def merged(settings: Settings, mode: Settings) -> Settings:
    agreement = mode.get("agreement", {}) | settings.get("agreement", {})
    return settings | ({"agreement": agreement} if agreement else {})


CONCAT = {"fusion": {"combine": "concat"}}
MISSING: dict[str, Settings] = {  # rows that some parties lack
    **{f"private-{name}": CONCAT | {"method": m} for name, m in every_method(("efvfl",)).items()},
    "private-svfl": {"method": {"name": "svfl"}},
    "private-cvfl": {"method": {"name": "cvfl", "compressor": QSGD, "down": QSGD}},
    "private-all-rows": {"agreement": {"reports": "all"}, "method": {"compressor": TOPK, "down": TOPK}},
    "private-full-batch": {"batch_size": 0, "method": {"compressor": TOPK}},
    "private-label-holder": {"label_holder": HOLDER, "fusion": {"combine": "sum", "hidden": [8]}},
    "private-shown": {"fusion": {"combine": "concat", "shows_presence": True}, "method": {"compressor": TOPK}},
    "relay-shown": {"fusion": {"shows_presence": True}, "agreement": SHARED},
    "private-start": {"method": {"compressor": TOPK, "start": "mean", "first": QSGD}, "agreement": {"subsets": "off"}},
    "private-sent-only": {"method": {"compressor": TOPK, "down": QSGD, "cotangents": "sent"}} | CONCAT,
    "private-window": {"agreement": {"pipeline": 4}, "method": {"compressor": TOPK}, "batch_order": "independent"},
    "private-patience": {"patience": 1, "epochs": 4, "optimizer": {"name": "SGD", "lr": 20.0}} | CONCAT,
    "relay": CONCAT | {"agreement": SHARED, "label_holder": HOLDER},
    "relay-all-rows": {"agreement": SHARED | {"reports": "all", "fusion": "compress"}, "method": {"fusion": QSGD}},
    "relay-window": {"agreement": SHARED | {"fusion": "replicate", "digest_every": 2, "pipeline": 3}},
    "relay-replicate": {"agreement": SHARED | {"fusion": "replicate", "digest_every": 2, "local_steps": 2}} | CONCAT,
    "relay-patience": {"patience": 1, "epochs": 4, "agreement": SHARED | {"fusion": "replicate"}},
    "aggregate": {"agreement": SHARED | {"downlink": "aggregate", "subsets": "off", "local_steps": 2}},
}


CASES: dict[str, Settings] = {
    **{f"{mode}-{name}": MODES[mode] | {"method": m} for mode in MODES for name, m in SETTINGS.items()},
    **every_agreement(),
    **{f"{mode}-{name}": merged(s, MODES[mode]) for mode in ("private", "relay") for name, s in BOTH.items()},
    **{f"private-{name}": settings for name, settings in PRIVATE.items()},
    **SHARED_ONLY,
    "private-saves": OFTEN,
    "relay-saves": OFTEN | {"agreement": SHARED},
}


def holds(case: str, folder: Path, transport: Transport = "memory", seed: int = 0) -> None:
    missing = case.removeprefix("missing-")
    run = config(**CASES[case]) if case in CASES else with_missing_rows(folder, **MISSING[missing])
    assert_same(reference(run), networked(run, folder, transport, seed))


# What `make test-fast` tries: every method and compressor once, both label modes, each way to send x0.
SAMPLE = [
    "private-svfl",
    "private-efvfl-topk",
    *(f"private-{name}" for name in every_method(("efvfl",))),
    "relay-cvfl-qsgd",
    "aggregate-efvfl-topk",
    "relay-send-batch-2",
    "relay-replicate-batch-2",
    "aggregate-compress-all-1",
    "private-start-exact",
    "private-fedbcd",
    "relay-fedbcd",
    "private-celu",
    "private-sent-only",
    "relay-label-holder",
    "private-normed",
    "private-down-efvfl",
    "private-saves",
]


MISSING_SAMPLE = [
    *(f"private-{name}" for name in every_method(("efvfl",))),
    *("private-label-holder", "relay", "relay-window", "private-patience"),
]


def left_out() -> set[str]:
    """Half of the product with shared labels: every three of downlink, fusion, reports and steps meet."""
    downlinks, fusions = enumerate(("relay", "aggregate")), enumerate(("send", "replicate", "compress"))
    return {
        f"{downlink}-{fusion}-{reports}-{2 - (i + j + k) % 2}"
        for (i, downlink), (j, fusion), (k, reports) in product(downlinks, fusions, enumerate(("batch", "all")))
    }


TRIED = [case for case in CASES if case not in left_out()]


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in SAMPLE else pytest.mark.slow) for c in TRIED])
def test_a_run_over_wires_equals_the_run_in_one_process(case: str, tmp_path: Path) -> None:
    holds(case, tmp_path)


@pytest.mark.parametrize(
    "case",
    [pytest.param(f"missing-{c}", marks=[] if c in MISSING_SAMPLE else pytest.mark.slow) for c in MISSING],
)
def test_so_does_one_with_rows_that_parties_lack(case: str, tmp_path: Path) -> None:
    holds(case, tmp_path)


@pytest.mark.parametrize(
    "case", ["private-efvfl-topk", "private-cvfl-qsgd", "relay-replicate-batch-2", "aggregate-compress-all-1"]
)
def test_so_does_one_over_loopback(case: str, tmp_path: Path) -> None:
    holds(case, tmp_path, "plain")


@pytest.mark.parametrize("case", ["private-label-holder", "relay-send-batch-1"])
def test_so_does_one_over_mutual_tls(case: str, tmp_path: Path) -> None:
    holds(case, tmp_path, "mtls")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "case",
    [
        "private-down-label-holder",
        "private-start-exact",
        "private-saves",
        "relay-replicate-batch-2",
        "aggregate-compress-batch-1",
        "relay-observe-every-2",
        "relay-patience",
        "missing-private-window",
    ],
)
def test_so_does_one_over_a_bad_network(case: str, seed: int, tmp_path: Path) -> None:
    holds(case, tmp_path, "faulty", seed)


@pytest.mark.system
def test_so_does_one_over_a_bad_network_of_sockets(tmp_path: Path) -> None:
    holds("private-cvfl-qsgd", tmp_path, "faulty-plain")


def test_every_named_method_is_among_the_cases() -> None:
    assert set(NAMED) <= {case.get("method", {}).get("name") for case in CASES.values()}


def test_the_cases_differ_from_each_other() -> None:
    """A comparison of two runs means something only if other settings give another outcome."""
    left, right = (reference(config(**CASES[case])) for case in ("private-efvfl-topk", "private-momentum"))
    with pytest.raises(AssertionError):
        assert_same(left, right)


# The bad network itself.


def through(faults: Faults, frames: list[bytes], seed: int = 0) -> list[bytes]:
    """What arrives of these frames."""
    there, here = memory_pair()
    wire = FaultyWire(there, faults, Random(seed))
    for frame in frames:
        wire.send(frame)
    arrived = []
    while True:
        try:
            arrived.append(here.receive(0))
        except TimeoutError:
            return arrived


FRAMES = [bytes((n,)) * 5 for n in range(40)]


def test_a_wire_without_faults_changes_nothing() -> None:
    assert through(Faults(), FRAMES) == FRAMES


def test_each_fault_does_what_it_says() -> None:
    assert through(Faults(drop=1), FRAMES) == []
    assert through(Faults(repeat=1), FRAMES[:2]) == [FRAMES[0], FRAMES[0], FRAMES[1], FRAMES[1]]
    cut_short = through(Faults(truncate=1), FRAMES)
    assert all(len(a) < 5 and f.startswith(a) for a, f in zip(cut_short, FRAMES, strict=True))
    altered = through(Faults(corrupt=1), FRAMES)
    for arrived, frame in zip(altered, FRAMES, strict=True):
        assert len(arrived) == 5
        assert 1 <= sum(a != b for a, b in zip(arrived, frame, strict=True)) <= 3
    assert through(Faults(delay=1), FRAMES) == FRAMES[:-1]  # each is let go by the next, which is held back in turn


def test_a_delayed_frame_comes_after_the_next_one() -> None:
    class Scripted(Random):
        """Delays the first frame of three."""

        draws = iter((0.1, 0.9, 0.9))

        def random(self) -> float:
            return next(self.draws)

    there, here = memory_pair()
    wire = FaultyWire(there, Faults(delay=0.5), Scripted(0))
    for frame in FRAMES[:3]:
        wire.send(frame)
    assert [here.receive(0) for _ in range(3)] == [FRAMES[1], FRAMES[0], FRAMES[2]]


def test_the_same_seed_gives_the_same_faults() -> None:
    faults = Faults(drop=0.2, repeat=0.2, delay=0.2, truncate=0.2, corrupt=0.2)
    assert through(faults, FRAMES, 1) == through(faults, FRAMES, 1) != through(faults, FRAMES, 2)


def test_a_cut_breaks_both_ends() -> None:
    there, here = memory_pair()
    wire = FaultyWire(there, Faults(cut=1), Random(0))
    with pytest.raises(LinkError, match="on purpose"):
        wire.send(b"frame")
    with pytest.raises(LinkError):
        here.receive(0)
    with pytest.raises(LinkError):
        FaultyWire(there, Faults(), Random(0)).send(b"frame")


def test_faults_that_are_no_probabilities_are_refused() -> None:
    for faults in ({"drop": -0.1}, {"drop": 0.6, "cut": 0.6}):
        with pytest.raises(ConfigError, match="add up to at most 1"):
            Faults(**faults)
    assert FAULTS.draw(Random(0)) in ("", "drop", "repeat", "delay", "truncate", "corrupt", "cut")
