"""The table of attacks in docs/security.md is what the tests say."""

from pathlib import Path

import pytest
from tools import attacks


def test_the_table_is_up_to_date() -> None:
    text = attacks.PAGE.read_text(encoding="utf-8")
    assert text == attacks.page(text), "run: python -m tools.attacks"


def test_a_mark_that_leaves_something_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text('@pytest.mark.attack(by="a ghost", tries="this", outcome="that")\ndef test_it(): ...\n')
    with pytest.raises(SystemExit, match=r"test_it.py:1: expected attack\(by=.*, got pytest.mark.attack\(by='a ghost'"):
        list(attacks.attacks_in(path))
