"""What a run file may say about a column of a table: its kind and, for numbers and dates, how they are written."""

from typing import Literal

ColumnType = Literal[
    "number",
    "category",
    "boolean",
    "date",
    "number 1234.5",
    "number 1,234.5",
    "number 1.234,5",
    "number 1 234.5",
    "number 1 234,5",
    "number 1'234.5",
    "date Y-m-d",
    "date Y/m/d",
    "date d.m.Y",
    "date d/m/Y",
    "date m/d/Y",
    "date d-m-Y",
    "date d.m.y",
    "date d/m/y",
    "date m/d/y",
    "date d b Y",
    "date d-b-Y",
    "date b d, Y",
    "date Ymd",
]
