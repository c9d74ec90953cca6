"""Epsilon of Gaussian noise as the package dp-accounting computes it, which tests compare efvfl's accountant with.

pip install dp-accounting && python -m tools.dp_oracle  # writes tests/core/dp_oracle.json
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from efvfl.util.files import write_atomically

FILE = Path(__file__).parent.parent / "tests" / "core" / "dp_oracle.json"
NOISES = (1.0, 4.0, 16.0, 64.0)  # in units of the sensitivity
VISITS = (1, 10, 100, 1000)
DELTAS = (1e-4, 1e-6, 1e-8)


def oracle(noise: float, visits: int, delta: float) -> float:
    """Return the epsilon of so many visits, from the distribution of their privacy loss."""
    import dp_accounting
    from dp_accounting import pld

    mu = visits**0.5 / noise
    # Losses are rounded up to multiples of the interval: it must be small beside epsilon, which is some times mu.
    accountant = pld.PLDAccountant(value_discretization_interval=min(1e-3, mu / 100))
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), visits))
    return float(accountant.get_epsilon(delta))


def main() -> None:
    """Write the table."""
    found = [[*case, round(oracle(*case), 6)] for case in product(NOISES, VISITS, DELTAS)]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in found)
    write_atomically(FILE, f'{{"columns": ["noise", "visits", "delta", "epsilon"], "rows": [\n{lines}\n]}}\n'.encode())


if __name__ == "__main__":
    main()
