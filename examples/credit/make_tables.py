"""Two tables about fictitious people: a bank knows who repaid a loan, a telephone company how they pay their bills.

    python examples/credit/make_tables.py [FOLDER]

Some people are customers of both. The telephone company writes ids as people do: with spaces, in small letters. Some of
its rows are there twice, and some values are missing.
"""

import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl

PEOPLE, AT_BANK, AT_TELCO = 9_000, 7_000, 7_000
JOBS = ("employed", "self-employed", "student", "retired", "none")
PLANS = ("prepaid", "basic", "family", "business")


def make_tables(folder: Path, seed: int = 0) -> list[Path]:
    """Write bank.csv and telco.csv; return their paths."""
    rng = np.random.default_rng(seed)

    def noise() -> np.ndarray:
        return rng.normal(size=PEOPLE)

    def some_of(choices: tuple[str, ...], level: np.ndarray) -> np.ndarray:
        return np.array(choices)[np.clip(level.astype(int), 0, len(choices) - 1)]

    # Hidden variables: carefulness with money, income, and debts elsewhere.
    careful, income, owing = noise(), noise(), noise()
    risk = -1.4 - careful - 0.7 * income + 0.9 * owing + 0.8 * np.maximum(0, owing - careful)
    ids = [f"C{number:06d}" for number in rng.permutation(90_000)[:PEOPLE] + 1_000]
    bank = pl.DataFrame(
        {
            "customer": ids,
            "age": np.clip(45 + 9 * careful + 9 * noise(), 18, 95).astype(int),
            "salary": np.round(np.exp(10.3 + 0.4 * income + 0.2 * noise()), -2),
            "balance": np.round(1_500 + 900 * income - 400 * owing + 800 * noise(), 2),
            "job": some_of(JOBS, 1.2 - income + noise()),
            "since": [date(2024, 1, 1) - timedelta(days=int(days)) for days in rng.integers(30, 6_000, PEOPLE)],
            "default": (rng.random(PEOPLE) < 1 / (1 + np.exp(-risk))).astype(int),
        }
    )
    telco = pl.DataFrame(
        {
            "client": [_as_people_write(name, rng.random()) for name in ids],
            "plan": some_of(PLANS, 1.5 + 0.8 * income + noise()),
            "bill": np.round(np.exp(3.2 + 0.3 * owing + 0.2 * noise()), 2),
            "late_payments": rng.poisson(np.exp(0.2 - 0.8 * careful + 0.4 * owing)),
            "reminders": rng.poisson(np.exp(-0.5 - 0.6 * careful)),
            "roaming": rng.random(PEOPLE) < 0.3,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"bank": _some(bank, AT_BANK, "salary", rng), "telco": _some(telco, AT_TELCO, "bill", rng)}
    tables["telco"] = pl.concat([tables["telco"], tables["telco"].head(25)])  # duplicates
    for name, table in tables.items():
        table.write_csv(folder / f"{name}.csv")
    return [folder / f"{name}.csv" for name in tables]


def _as_people_write(name: str, chance: float) -> str:
    return name.lower() if chance < 0.1 else f" {name}" if chance < 0.2 else name


def _some(table: pl.DataFrame, rows: int, gaps: str, rng: np.random.Generator) -> pl.DataFrame:
    """Return a random sample of the rows, with some values of a column missing."""
    chosen = table[rng.permutation(len(table))[:rows]]
    there = pl.Series(rng.random(rows) > 0.05)
    return chosen.with_columns(pl.when(there).then(pl.col(gaps)).alias(gaps))


if __name__ == "__main__":
    for path in make_tables(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(path)
