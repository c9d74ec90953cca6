"""What the label holder does to cotangents before they leave it, and that the attacks it is for are real."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import leakage
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import everything, memories, parameters, problem, same
from torch import Tensor

from efvfl import QSGD, Agreement, Federation, Message, Method, Protection, TopK, efvfl, svfl
from efvfl.compress import decode
from efvfl.config.run_file import MethodConfig, RunConfig, load
from efvfl.core.noise import normal
from efvfl.data import digits
from efvfl.errors import CompressionError, ConfigError
from efvfl.experiments.experiment_file import Job
from efvfl.runs.build import make_federation
from efvfl.util import checkpoint

NOISY = Protection(clip=0.05, noise=2.0)


def sent(run: Federation, steps: int) -> list[dict[str, Tensor]]:
    """Train so many steps; return the cotangent that every party was sent, step by step."""
    found: list[dict[str, Tensor]] = []
    honest = run.server.label_mode.answers

    def listening(*arguments: object) -> dict[str, Message]:
        messages = honest(*arguments)  # type: ignore[arg-type]
        blocks = {name: message.packets[k][0] for k, (name, message) in enumerate(messages.items(), start=1)}
        found.append({name: torch.tensor(decode(block)) for name, block in blocks.items()})
        return messages

    run.server.label_mode.answers = listening  # type: ignore[method-assign, assignment]
    for _ in range(steps):
        run.step()
    return found


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 5),
    clip=st.floats(1e-6, 1e6),
    scale=st.floats(1e-12, 1e12),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_no_row_is_longer_than_the_clip_and_shorter_ones_stay(
    rows: int, width: int, clip: float, scale: float, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-3, 3, rows, dtype=torch.float64)[:, None] * scale
    cotangent = (torch.randn(rows, width, generator=generator, dtype=torch.float64) * spread).to(dtype)
    cotangent[0] = 0
    clipped = Protection(clip).apply(cotangent, 0)
    before, after = (rows * x.double().norm(dim=1) for x in (cotangent, clipped))
    assert clipped.dtype == dtype
    assert bool((after <= clip * (1 + 1e-6)).all())
    assert torch.equal(clipped[before < clip * (1 - 1e-6)], cotangent[before < clip * (1 - 1e-6)])
    long = before > clip * (1 + 1e-6)
    assert torch.allclose(after[long], torch.full_like(after[long], clip), rtol=1e-5)
    assert torch.allclose(clipped[long].double() * (before / after)[long, None], cotangent[long].double(), rtol=1e-4)


def test_the_clip_is_on_a_rows_own_derivative_whatever_the_batch() -> None:
    own = torch.randn(10, 4, dtype=torch.float64)
    small, large = (Protection(1.0).apply(own.repeat(n, 1) / (10 * n), 0)[:10] * 10 * n for n in (1, 7))
    assert torch.allclose(small, large)


def test_noise_is_a_function_of_the_key_and_has_the_stated_size() -> None:
    assert torch.equal(normal(3, (5, 3)), normal(3, (5, 3)))
    assert not torch.equal(normal(3, (5, 3)), normal(4, (5, 3)))
    # Keys that agree in their low 32 bits, which is all that torch's generator takes.
    assert not torch.equal(normal(3, (5, 3)), normal(3 + 2**32, (5, 3)))
    # Fixed for good: a run must go on in a later version with the noise it would have had.
    pinned = torch.tensor([[-0.45611587031191436, 1.4488074795121728, 0.668413720842331]], dtype=torch.float64)
    assert torch.allclose(normal(0, (1, 3)), pinned, rtol=1e-12)
    draws = normal(1, (100_000,)).sort().values
    expected = torch.special.ndtr(draws)
    uniform = torch.linspace(0, 1, len(draws), dtype=torch.float64)
    assert float((expected - uniform).abs().max()) < 0.006  # Kolmogorov and Smirnov, at one in a thousand
    silent = torch.zeros(2000, 8)
    noisy = 2000 * Protection(0.5, 4.0).apply(silent, 7)
    assert float(noisy.std()) == pytest.approx(2.0, rel=0.02)
    assert normal(0, (0, 3)).shape == (0, 3)


def test_what_is_not_a_number_is_not_hidden() -> None:
    for bad in (float("nan"), float("inf")):
        cotangent = torch.ones(3, 2)
        cotangent[1, 0] = bad
        with pytest.raises(CompressionError, match="only finite numbers can be sent"):
            TopK(0.5).encode(NOISY.apply(cotangent, 0).numpy())


@pytest.mark.parametrize("combine", ["sum", "mean", "concat"])
def test_off_and_a_clip_that_no_row_reaches_change_nothing(combine: str) -> None:
    runs = [
        problem(efvfl(TopK(0.3), QSGD(4)), combine=combine, batch_size=16, protect=protect)
        for protect in (None, Protection(), Protection(clip=1e6))
    ]
    assert runs[0].server.label_mode.protection == Protection()  # type: ignore[attr-defined]
    for run in runs:
        for _ in range(9):
            run.step()
    assert same(everything(runs[0]), everything(runs[1]))
    assert same(everything(runs[0]), everything(runs[2]))


@pytest.mark.parametrize("combine", ["sum", "mean", "concat"])
def test_what_is_sent_is_the_cotangent_clipped_and_noised(combine: str) -> None:
    plain, clipped, noisy = (
        sent(problem(combine=combine, batch_size=16, protect=protect), 1)[0]
        for protect in (Protection(), replace(NOISY, noise=0.0), NOISY)
    )
    limit = NOISY.clip / 16
    for name, cotangent in plain.items():
        assert torch.allclose(clipped[name], Protection(NOISY.clip).apply(cotangent, 0))
        assert float(clipped[name].norm(dim=1).max()) == pytest.approx(limit)
        assert float((noisy[name] - clipped[name]).std()) == pytest.approx(NOISY.noise * limit, rel=0.3)


def test_noise_differs_between_steps_and_seeds() -> None:
    first, second = sent(problem(protect=NOISY, optimizer=None), 2)
    still = sent(problem(protect=Protection(NOISY.clip), optimizer=None), 2)
    assert not torch.allclose(first["party1"] - still[0]["party1"], second["party1"] - still[1]["party1"])
    assert torch.equal(sent(problem(protect=NOISY), 1)[0]["party1"], sent(problem(protect=NOISY), 1)[0]["party1"])
    other = sent(problem(protect=NOISY, seed=1), 1)[0]  # full batch: the seed decides the noise and nothing else
    assert not torch.equal(first["party1"], other["party1"])


def test_colluding_parties_can_neither_average_nor_subtract_the_noise() -> None:
    for step in sent(problem(combine="sum", batch_size=16, protect=NOISY), 3):
        assert torch.equal(step["party1"], step["party2"])
        assert torch.equal(step["party1"], step["party3"])
    runs = (sent(problem(combine="concat", batch_size=16, protect=p), 1)[0] for p in (Protection(NOISY.clip), NOISY))
    noise = [noisy - clipped for clipped, noisy in zip(*(run.values() for run in runs), strict=True)]
    together = torch.corrcoef(torch.stack([part.flatten() for part in noise]))
    assert float((together - torch.eye(3)).abs().max()) < 0.5  # 64 entries of each: the same draws would give 1


@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_what_does_not_leave_the_label_holder_stays_exact(combine: str) -> None:
    for holder in ("party1", "party2"):
        plain, noisy = (
            sent(problem(combine=combine, batch_size=16, label_holder=holder, protect=protect), 1)[0]
            for protect in (Protection(), NOISY)
        )
        assert [name for name in plain if torch.equal(plain[name], noisy[name])] == [holder]


@pytest.mark.parametrize("method", [svfl(), efvfl(TopK(0.2), QSGD(4))])
@pytest.mark.parametrize("combine", ["mean", "concat"])
def test_a_resumed_run_has_the_noise_it_would_have_had(method: Method, combine: str, tmp_path: Path) -> None:
    def build() -> Federation:
        return problem(method, combine=combine, batch_size=16, protect=NOISY)

    run = build()
    for _ in range(5):
        run.step()
    checkpoint.save(tmp_path / "state", run.state_dict())
    resumed = build()
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    for going in (run, resumed):
        for left in reversed(range(6)):
            going.step(hold=left == 0)
    assert same(everything(run), everything(resumed))
    assert all(same(copies[:1] * len(copies), copies) for copies in memories(run))
    unprotected = problem(method, combine=combine, batch_size=16)
    for _ in range(11):
        unprotected.step()
    assert not same(parameters(run), parameters(unprotected))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[protect]\nnoise = 1.0", "noise = 1.0 needs protect.clip"),
        ("[protect]\nclip = -1", "protect.clip: expected at least 0, got -1"),
        ("[protect]\nclip = nan", "protect: clip: expected a finite number, got nan"),
        ("[protect]\nclip = 1\nnoise = inf", "protect: noise: expected a finite number, got inf"),
        ("[protect]\nclip = 'much'", "clip: expected a number, got 'much'"),
        ("[protect]\nclips = 1.0", r"unknown key 'clips'\. Did you mean 'clip'\?"),
        (
            "[protect]\nclip = 1.0\n[agreement]\nlabels = 'shared'",
            "protect does not go with shared labels: .* no effect",
        ),
    ],
)
def test_mistakes_are_answered(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=error):
        load(tmp_path / "run.toml")


def test_shared_labels_refuse_it_from_python_too() -> None:
    with pytest.raises(ConfigError, match="protect does not go with shared labels"):
        problem(agreement=Agreement(labels="shared"), protect=NOISY)
    problem(agreement=Agreement(labels="shared"), protect=Protection())


def test_a_run_file_reaches_the_server_and_old_results_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[protect]\nclip = 1\nnoise = 0.5\n")
    config = load(tmp_path / "run.toml")
    run = make_federation(config, digits())
    assert run.server.label_mode.protection == Protection(1.0, 0.5)  # type: ignore[attr-defined]
    plain = RunConfig(method=MethodConfig("svfl"))
    assert Job("x", plain).key == Job("x", replace(plain, protect=Protection())).key == "fd84073740a211c0"
    assert Job("x", replace(plain, protect=NOISY)).key != Job("x", plain).key


def test_the_attacks_work_and_noise_stops_them() -> None:
    data = leakage.synthetic(600, seed=0)
    labels = data.train.labels
    _, plain = leakage.train(data, leakage.SVFL, seed=0, epochs=2)
    norm, _, direction, both = leakage.attacks(labels, plain)
    assert norm > 0.9
    assert direction > 0.9
    assert both > 0.9
    _, clipped = leakage.train(data, replace(leakage.SVFL, protect=Protection(0.05)), seed=0, epochs=2)
    assert leakage.attacks(labels, clipped)[2] > 0.9  # clipping leaves the direction
    _, noisy = leakage.train(data, replace(leakage.SVFL, protect=Protection(0.05, 16.0)), seed=0, epochs=2)
    assert max(leakage.attacks(labels, noisy)) < 0.7


def test_what_is_off_returns_the_cotangent_itself() -> None:
    cotangent = torch.full((3, 2), 1e6)
    assert Protection().apply(cotangent, 5) is cotangent
