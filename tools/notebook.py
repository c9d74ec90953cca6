"""Run the code cells of a notebook in order and save their output: `python tools/notebook.py FILE.ipynb`.

A small tool, so that updating a notebook does not need Jupyter; the value of a cell's last expression is not shown.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any


def run(path: Path) -> dict[str, Any]:
    """Return the notebook with fresh outputs; its code runs in its folder."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    try:
        code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        for count, cell in enumerate(code, start=1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"{path.name} [{count}]", "exec"), names)
            cell["execution_count"] = count
            lines = printed.getvalue().splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    finally:
        sys.path.pop(0)
        os.chdir(before)
    return notebook


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    done = run(file)
    file.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
