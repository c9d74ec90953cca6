"""Docstrings as this project writes them, as the site's reference needs them.

Examples stand in them without a heading, fields are described by the comment beside them, and links start at the root
of the repository.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.M)
COMMENT = re.compile(r"#\s+(.+)$")


def shown(text: str) -> str:
    """Return a docstring as Markdown: examples in blocks, links as pages of the reference have them."""
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return text.replace("](docs/", "](../")


class Docstrings(Extension):
    """Changes what was read."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Write docstrings as Markdown."""
        if obj.docstring:
            obj.docstring.value = shown(obj.docstring.value)

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        """Take the comments beside fields for their docstrings."""
        for member in cls.members.values():
            if not isinstance(member, Attribute) or member.docstring or member.name.startswith("_"):
                continue
            if said := _comment(member):
                member.docstring = Docstring(said, parent=member)


def _comment(field: Attribute) -> str:
    if field.lineno is None or field.endlineno is None:
        return ""
    lines = field.lines_collection[field.filepath][field.lineno - 1 : field.endlineno]
    found = [match[1] for line in lines if '"#' not in line and (match := COMMENT.search(line))]
    return found[0][0].upper() + found[0][1:] if found else ""
