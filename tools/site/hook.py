"""What mkdocs does not do by itself: the order of the pages, pages from outside docs/, the reference.

The documents in docs/ are written for a code host: they link to files of the repository, and docs/index.md is their
order. For the site, whatever they link to becomes a page too, and index.md becomes the navigation. mkdocs.yml names
this file; the functions have the names of mkdocs's events.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.site.reference import AREAS, page_of

ROOT = Path(__file__).parent.parent.parent
OUTSIDE = "repository/"  # where pages from outside docs/ lie on the site
REFERENCE = "reference/"
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".sh": "sh"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)


def links(text: str) -> Iterator[str]:
    """Return where a document links to, without anchors and other sites."""
    for found in LINK.finditer(FENCED.sub("", text)):
        target = found[2].partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            yield target


def outside_docs() -> list[str]:
    """Return the files outside docs/ that documents link to, and those that these link to."""
    found: dict[str, None] = {}
    waiting = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]
    while waiting:
        source = waiting.pop(0)
        for target in links((ROOT / source).read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            if not path.startswith("docs/") and path not in found:
                found[path] = None
                if path.endswith(".md"):
                    waiting.append(path)
    return list(found)


def site_name_of(path: str) -> str:
    """Return the name on the site of a file of the repository: 'docs/wire.md' is 'wire.md'."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return "index.md" if path == "README.md" else OUTSIDE + path + ("" if path.endswith(".md") else ".md")


def in_repository(page: str) -> str:
    """Return the file of the repository that a page was made from."""
    return page.removeprefix(OUTSIDE) if page.startswith(OUTSIDE) else "docs/" + page


def relinked(text: str, source: str) -> str:
    """Return a document with links as they are between pages of the site."""
    page = site_name_of(source)

    def moved(found: re.Match[str]) -> str:
        target, sign, anchor = found[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("docs/") and source.startswith("docs/"):
            return found[0]
        return (
            found[1] + posixpath.relpath(site_name_of(path), posixpath.dirname(page) or ".") + sign + anchor + found[3]
        )

    return _outside_fences(text, lambda part: LINK.sub(moved, part))


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in FENCED.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def page_of_file(path: str) -> str:
    """Return a page that shows a file of the repository: documents as they are, code as a block, notebooks as both."""
    text = (ROOT / path).read_text(encoding="utf-8")
    suffix = Path(path).suffix
    if suffix == ".md":
        return text
    body = _notebook(text) if suffix == ".ipynb" else f"`````{LANGUAGES.get(suffix, 'text')}\n{text}`````\n"
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{body}"


def _notebook(text: str) -> str:
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("# ", "## ", 1) if source.startswith("# ") else source)
        else:
            parts.append(f"```python\n{source}\n```")
            printed = "".join(line for output in cell["outputs"] for line in output.get("text", []))
            parts += [f"```text\n{printed}```"] if printed else []
    return "\n\n".join(parts) + "\n"


def navigation(index: str) -> list[Any]:
    """Return the navigation that docs/index.md describes: its sections, and the pages that their lists link to."""
    nav: list[Any] = [{"Home": "index.md"}]
    seen = {"index.md"}
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        pages = []
        for name, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)\)", text):
            page = site_name_of(posixpath.normpath(f"docs/{target}"))
            if page not in seen:
                seen.add(page)
                pages.append({name[0].upper() + name[1:]: page})
        nav.append({title: pages})
    return nav


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from docs/index.md, with the reference as a part of its section."""
    nav = navigation((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    areas = [{area.title: f"{REFERENCE}{area.name}.md"} for area in AREAS]
    for part in nav:
        part.get("Reference", []).extend([{"Python": areas}] if "Reference" in part else [])
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, and what documents link to outside docs/."""
    for area in AREAS:
        files.append(File.generated(config, f"{REFERENCE}{area.name}.md", content=page_of(area)))
    for path in outside_docs():
        if site_name_of(path) != "index.md":
            files.append(File.generated(config, site_name_of(path), content=page_of_file(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to pages of the site."""
    name = page.file.src_uri
    return markdown if name.startswith(REFERENCE) else relinked(markdown, in_repository(name))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave fields with a name of a letter or two out of searches: whoever looks for top-k is not after every k."""
    return re.sub(r'(<h3 id="efvfl\.\w+\.\w{1,2}")', r"\1 data-search-exclude", html)
