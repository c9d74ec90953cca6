"""Tables of parties: reading, ids, splits, encoding as numbers, and inspection."""

from efvfl.util.extras import optional

with optional("tables", "reading tables"):
    import polars  # noqa: F401  (once for all modules of this package, which import it as usual)
