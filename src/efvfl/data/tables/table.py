"""Reading of tables from files, and conversion from other libraries, to polars."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars

from efvfl.data.tables.texts import DASHES, MISSING, as_text, typed, without_markers
from efvfl.errors import DataError, nearest

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t"}
SUFFIXES = (*SEPARATORS, ".parquet", ".arrow", ".feather", ".ipc")


def has_types(path: Path) -> bool:
    """Whether the file's format stores the type of each column, as a CSV does not."""
    return not path.name.lower().endswith(tuple(SEPARATORS))


def read(
    path: Path,
    texts: Sequence[str] = (),
    *,
    raw: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    label: str = "",
) -> polars.DataFrame:
    """Return the table in a file, by its suffix.

    - `texts`: columns to convert to strings, so that '007' is not 7.
    - `raw`: columns whose types are not guessed, because an encoder knows how they are written.
    - `missing`: texts that mean a missing value; None: the usual ones, in files without types.
    - `label`: a column in which a dash has a meaning.
    """
    suffix = next((s for s in SUFFIXES if path.name.lower().endswith(s)), None)
    if suffix is None:
        raise DataError(f"expected a file name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {path}.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    frame = _read_csv(path, data, suffix) if suffix in SEPARATORS else _read_binary(path, data, suffix)
    if not frame.height or not frame.width:
        raise DataError(f"expected a table with rows in {path}, got {frame.height:,} rows and {frame.width:,} columns.")
    markers = missing if missing is not None else MISSING if suffix in SEPARATORS else ()
    frame = mark_missing(frame, markers, label if missing is None else "")
    if suffix in SEPARATORS:
        frame = frame.with_columns(typed(c) for c in frame.get_columns() if c.name not in (*texts, *raw))
    return frame.with_columns(as_text(column(frame, name, str(path))) for name in texts)


def column(frame: polars.DataFrame, name: str, where: str) -> polars.Series:
    """Return one column; the error about a missing one suggests the closest name."""
    if name not in frame.columns:
        raise DataError(f"{where} has no column {name!r}. {nearest(name, frame.columns)}")
    return frame.get_column(name)


def as_frame(source: object) -> polars.DataFrame:
    """Return a polars DataFrame made from a table of polars, pandas or pyarrow."""
    if isinstance(source, polars.DataFrame):
        return source
    library = type(source).__module__.partition(".")[0]
    table: Any = source
    try:
        if library == "pandas" and type(source).__name__ == "DataFrame":
            return polars.from_pandas(_in_one_type(table))
        if library == "pyarrow" and type(source).__name__ in ("Table", "RecordBatch"):
            frame = polars.from_arrow(table)
            assert isinstance(frame, polars.DataFrame)  # only a single array becomes a series
            return frame
    except ImportError as error:
        raise DataError(f"this {library} table needs pyarrow to be read: pip install pyarrow.") from error
    except (ValueError, TypeError, polars.exceptions.PolarsError) as error:
        raise DataError(
            f"a {library} table cannot be read: {error}. Every column needs one type and a name."
        ) from error
    raise DataError(f"expected a DataFrame of polars or pandas or a Table of pyarrow, got a {type(source).__name__}.")


def _in_one_type(table: Any) -> Any:
    """Return a DataFrame of pandas with text in columns that mix it with numbers: a few words among numbers do that."""
    mixed = {}
    for name, values in table.items():
        if values.dtype == object and {str} < set(map(type, values.dropna())) <= {str, int, float}:
            mixed[name] = values.map(str, na_action="ignore")
    return table.assign(**mixed) if mixed else table


def mark_missing(frame: polars.DataFrame, markers: Sequence[str], label: str = "") -> polars.DataFrame:
    """Return a table with null for texts that mean a missing value; in the label, a dash is none of them."""
    strings = [values for values in frame.get_columns() if values.dtype == polars.String]
    return frame.with_columns(
        without_markers(values, [m for m in markers if values.name != label or m not in DASHES]) for values in strings
    )


def _read_csv(path: Path, data: bytes, suffix: str) -> polars.DataFrame:
    text = _decode(path, _unpack(path, data) if suffix.endswith(".gz") else data)
    _check_rows(path, text, SEPARATORS[suffix])
    try:
        # polars can infer the types, but it is ten times slower for dates.
        return polars.read_csv(text.encode(), separator=SEPARATORS[suffix], null_values=[""], infer_schema=False)
    except polars.exceptions.PolarsError as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _unpack(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}. Copy it again.") from error


def _decode(path: Path, data: bytes) -> str:
    """Return the text without a byte order mark and trailing empty lines."""
    try:
        return data.decode("utf-8-sig").rstrip("\r\n") + "\n"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line:,}: these bytes are not UTF-8. Save the file as UTF-8.") from error


def _check_rows(path: Path, text: str, separator: str) -> None:
    """Check the header, and that all rows have its length: polars would silently pad shorter ones."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = next(rows, [])
        _check_header(path, header)
        for row in rows:
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {rows.line_num:,}: expected {len(header):,} fields, as in the header, got "
                    f"{len(row):,}. A field that contains the separator must be quoted."
                )
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num:,}: {error}. Correct the quotes of this row.") from error


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not header:
        raise DataError(f"expected a header with column names, then rows in {path}, got an empty file.")
    unnamed = [i + 1 for i, name in enumerate(header) if not name.strip()]
    if unnamed:
        raise DataError(f"{path}: column {unnamed[0]} has no name. Name it, or save the table without its index.")
    if all(_is_number(name) for name in header):
        raise DataError(f"{path} has no header: its first line is {', '.join(header[:3])!r}. Add the column names.")
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataError(f"{path}: there is more than one column {twice[0]!r}. Every column needs a different name.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_binary(path: Path, data: bytes, suffix: str) -> polars.DataFrame:
    try:
        if suffix == ".parquet":
            return polars.read_parquet(io.BytesIO(data))
        if data.startswith(b"ARROW1"):
            return polars.read_ipc(io.BytesIO(data))
        return polars.read_ipc_stream(io.BytesIO(data))
    except (polars.exceptions.PolarsError, OSError, ValueError) as error:
        raise DataError(f"cannot read {path} as {suffix}: {error}. Was it copied completely?") from error
