"""Parts of a self-contained HTML page: tables and figures for light and dark screens."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from html import escape
from typing import TYPE_CHECKING

from efvfl.util.extras import optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --ink: #2e3440; --paper: #ffffff; --line: #d8dee9; --shade: #f4f5f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #d8dee9; --paper: #1c2028; --line: #434c5e; --shade: #272c36; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
body { color: var(--ink); background: var(--paper); }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid var(--line); }
.t1 :nth-child(-n+1), .t2 :nth-child(-n+2), .t3 :nth-child(-n+3) { text-align: left; }
figure { margin: 1rem 0; }
svg { width: 100%; height: auto; } pre { background: var(--shade); padding: 1rem; overflow-x: auto; }
"""

# A placeholder colour, replaced by the text colour of the page.
INK = "#010203"


def inked() -> AbstractContextManager[None]:
    """Draw with that ink within this context."""
    with optional("plots", "a drawing"):
        import matplotlib

    return matplotlib.rc_context(
        {
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "grid.color": INK,
        }
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 2) -> str:
    """Return a table; the first `texts` columns, one to three, are aligned as text, the others as numbers."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table class='t{texts}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def drawing(canvas: Figure, name: str, description: str) -> str:
    """Return a figure as part of a page; names within it begin with `name`, so that several go on one page."""
    with optional("plots", "a drawing"):
        import matplotlib

    out = io.BytesIO()
    none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": "efvfl", "svg.fonttype": "none"}):
        canvas.savefig(out, format="svg", transparent=True, metadata=none)
    text = out.getvalue().decode()
    svg = text[text.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)
    width = 1.4 * 96 * canvas.get_figwidth()  # a single panel does not fill the width of the page
    return f"<figure style='max-width: {width:.0f}px'>{svg.strip()}</figure>"


def page(title: str, parts: Iterable[str]) -> str:
    """Return the page, which loads no other files."""
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"
