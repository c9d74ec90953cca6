"""A party's table as a polars frame, whichever file or library it comes from."""

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

from efvfl.data.tables.texts import MISSING, as_text, typed
from efvfl.errors import DataError, nearest

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t"}
SUFFIXES = (*SEPARATORS, ".parquet", ".arrow", ".feather", ".ipc")


def read(path: Path, texts: Sequence[str] = ()) -> polars.DataFrame:
    """Read a file by its suffix; the columns in `texts` stay text, so that '007' is not 7."""
    suffix = next((s for s in SUFFIXES if path.name.lower().endswith(s)), None)
    if suffix is None:
        raise DataError(f"{path} has no suffix that tells its format: one of {', '.join(SUFFIXES)} is expected.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    frame = _read_csv(path, data, suffix, texts) if suffix in SEPARATORS else _read_binary(path, data, suffix)
    if not frame.height or not frame.width:
        raise DataError(f"{path} has {frame.height:,} rows and {frame.width:,} columns: some of each are expected.")
    return frame.with_columns(as_text(column(frame, name, str(path))) for name in texts)


def column(frame: polars.DataFrame, name: str, where: str) -> polars.Series:
    """Return one column; one that is not there is an error with the nearest name."""
    if name not in frame.columns:
        raise DataError(f"{where} has no column {name!r}. {nearest(name, frame.columns)}")
    return frame.get_column(name)


def as_frame(source: object) -> polars.DataFrame:
    """Return a table of polars, pandas or pyarrow as one of polars."""
    if isinstance(source, polars.DataFrame):
        return source
    library = type(source).__module__.partition(".")[0]
    table: Any = source
    try:
        if library == "pandas" and type(source).__name__ == "DataFrame":
            return polars.from_pandas(table)
        if library == "pyarrow" and type(source).__name__ in ("Table", "RecordBatch"):
            frame = polars.from_arrow(table)
            assert isinstance(frame, polars.DataFrame)  # only a lone array becomes a series
            return frame
    except ImportError as error:
        raise DataError(f"this {library} table needs pyarrow to be read: pip install pyarrow.") from error
    except (ValueError, TypeError, polars.exceptions.PolarsError) as error:
        raise DataError(
            f"a {library} table cannot be read: {error}. Every column needs one type and a name."
        ) from error
    raise DataError(
        f"a {type(source).__name__} came, a DataFrame of polars or pandas or a Table of pyarrow is expected."
    )


def _read_csv(path: Path, data: bytes, suffix: str, texts: Sequence[str]) -> polars.DataFrame:
    text = _decode(path, _unpack(path, data) if suffix.endswith(".gz") else data)
    _check_rows(path, text, SEPARATORS[suffix])
    try:
        # Told to, polars guesses types itself, but dates at a tenth of this speed.
        frame = polars.read_csv(
            text.encode(), separator=SEPARATORS[suffix], null_values=list(MISSING), infer_schema=False
        )
    except polars.exceptions.PolarsError as error:
        raise DataError(f"cannot read {path}: {error}") from error
    return frame.with_columns(typed(values) for values in frame.get_columns() if values.name not in texts)


def _unpack(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}. Copy it again.") from error


def _decode(path: Path, data: bytes) -> str:
    """Return the text without the mark that spreadsheets put first and the empty lines that editors leave last."""
    try:
        return data.decode("utf-8-sig").rstrip("\r\n") + "\n"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line:,}: these bytes are not UTF-8. Save the file as UTF-8.") from error


def _check_rows(path: Path, text: str, separator: str) -> None:
    """Refuse a header that is none and rows of another length, which polars would fill up in silence."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = next(rows, [])
        _check_header(path, header)
        for row in rows:
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {rows.line_num:,}: {len(row):,} fields came, {len(header):,} are expected as in the "
                    "header. A field that holds the separator needs quotes around it."
                )
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num:,}: {error}. Mend the quotes of this row.") from error


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not header:
        raise DataError(f"{path} is empty: a header with the names of the columns is expected, then rows.")
    unnamed = [i + 1 for i, name in enumerate(header) if not name.strip()]
    if unnamed:
        raise DataError(f"{path}: column {unnamed[0]} has no name. Name it, or save the table without its index.")
    if all(_is_number(name) for name in header):
        raise DataError(f"{path} has no header: its first line is {', '.join(header[:3])!r}. Put the names there.")
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataError(f"{path}: there is more than one column {twice[0]!r}. Every column needs a name of its own.")


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
        raise DataError(f"cannot read {path} as {suffix}: {error}. Was it copied whole?") from error
