"""The algorithms on one page run, and show the paper's point."""

import re

import pytest
from examples import algorithms_on_one_page


@pytest.mark.slow
def test_the_page_runs_and_error_feedback_keeps_what_compression_alone_loses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    algorithms_on_one_page.main()
    lines = capsys.readouterr().out.splitlines()
    accuracy = {line.split("  ")[0]: float(re.findall(r"accuracy ([\d.]+) %", line)[0]) for line in lines}
    svfl, cvfl, private, shared = accuracy.values()
    assert next(iter(accuracy)).startswith("SVFL")
    assert cvfl < svfl - 5
    assert min(private, shared) > svfl - 3
