"""The theorems' constants of a federation, against closed forms: linear parties that are added, and least squares."""

import pytest
import torch
from torch import Tensor, nn

from efvfl import Agreement, Federation, Identity, Loss, Optimizer, Setup, SharedLabels, TopK, Training, efvfl, federate
from efvfl.core.theory import sufficient_step
from efvfl.errors import ConfigError
from efvfl.training.constants import problem_of

ROWS = 40
HALF_SQUARES = Loss("half squares", lambda o, y: ((o - y) ** 2).mean() / 2, "none", lambda o, y: 0.0)


def blocks() -> tuple[list[Tensor], Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = [torch.randn(ROWS, columns, generator=draw, dtype=torch.float64) for columns in (3, 2, 4)]
    return x, torch.randn(ROWS, 1, generator=draw, dtype=torch.float64)


def made(batch_size: int = 0, agreement: Agreement | None = None, **method: object) -> Federation:
    torch.manual_seed(0)
    x, y = blocks()
    models = [nn.Linear(v.shape[1], 1, bias=False).double() for v in x]
    return federate(
        x,
        y,
        models,
        nn.Identity(),
        method=efvfl(TopK(0.1), **method),  # type: ignore[arg-type]
        agreement=agreement or Agreement("shared"),
        training=Training(Optimizer("SGD", {"lr": 0.1}), loss=HALF_SQUARES, batch_size=batch_size),
        setup=Setup(combine="sum"),
    )


def test_constants_of_least_squares_are_those_in_closed_form() -> None:
    x, _ = blocks()
    found = problem_of(made(), mu=0.001)
    assert (found.parties, found.batch, found.labels, found.variance, found.mu) == (3, ROWS, "shared", 0.0, 0.001)
    assert found.alpha == TopK(0.1).alpha((ROWS, 1)) == 0.1
    assert found.derivative == pytest.approx(max(float(torch.linalg.matrix_norm(v, 2)) for v in x), rel=1e-6)
    of_f = float(torch.linalg.matrix_norm(torch.cat(x, 1), 2)) ** 2 / ROWS
    assert found.smooth == pytest.approx(max(of_f, 3 / ROWS), rel=1e-6)  # Phi's Hessian is 1 1^T / N for each row
    assert sufficient_step(found).eta > 0
    assert problem_of(made(agreement=Agreement())).labels == "private"


def test_a_batch_reaches_its_share_of_the_rows() -> None:
    federation = made(batch_size=10)
    found = problem_of(federation)
    assert found.batch == 10
    assert found.alpha == pytest.approx(0.1 * 10 / ROWS)
    assert problem_of(made(10, Agreement(SharedLabels(), reports="all"))).alpha == pytest.approx(0.1)
    x, y = blocks()
    whole = torch.cat(x, 1)
    point = torch.cat([m.weight.detach()[0] for m in federation.models])  # type: ignore[operator]
    rows = (whole @ point - y[:, 0])[:, None] * whole
    order = [federation.server.batches.rows(step) for step in range(4)]
    missed = [(rows[part].mean(0) - rows.mean(0)).square().sum() for part in order]
    assert found.variance == pytest.approx(10 * float(sum(missed)) / 4, rel=1e-9)
    before = federation.state_dict()["server"]["step"]
    assert before == federation.server.step_number == 0  # nothing was trained


def test_parties_of_their_own_and_a_compressed_fusion_model_count() -> None:
    assert problem_of(made(parties={"party2": TopK(0.05)})).alpha == pytest.approx(0.05)
    assert problem_of(made(parties={f"party{k}": Identity() for k in (1, 2, 3)})).alpha == 1


def test_rows_that_some_lack_are_no_such_problem() -> None:
    x, y = blocks()
    x[0][3] = torch.nan
    models = [nn.Linear(v.shape[1], 1, bias=False).double() for v in x]
    loss = Loss("s", HALF_SQUARES.function, "n", HALF_SQUARES.metric, each=lambda o, y: (o - y) ** 2 / 2)
    federation = federate(x, y, models, nn.Identity(), training=Training(loss=loss), setup=Setup(combine="sum"))
    with pytest.raises(ConfigError, match="about parties that have all rows"):
        problem_of(federation)
