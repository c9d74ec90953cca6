"""Texts of peers on a terminal: they are shown, and control nothing."""

import logging

import pytest
from rich.console import Console
from rich.logging import RichHandler

from efvfl.cli import run
from efvfl.cli.main import main
from efvfl.errors import DataError
from efvfl.network.ops.terminal_log import LogForm, log_handler

TRICK = "\x1b]0;renamed\x07\x1b[2Jall is well\r"


@pytest.mark.attack(
    by="a party",
    tries="puts escape sequences into texts that the other side logs, such as a refusal",
    outcome="control characters are replaced in every log line",
)
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("form", ["auto", "plain", "json"])
def test_log_lines_have_no_control_characters(
    form: LogForm, terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # without colours of our own
    monkeypatch.setattr(Console, "is_terminal", terminal)
    handler = log_handler(form)
    assert isinstance(handler, RichHandler) == (terminal and form == "auto")
    handler.handle(logging.LogRecord("efvfl", logging.WARNING, "", 0, "%s is gone: %s", ("north", TRICK), None))
    shown = capsys.readouterr().err
    assert "north is gone" in shown
    assert all(c.isprintable() or c == "\n" for c in shown)


@pytest.mark.attack(
    by="the label holder",
    tries="has escape sequences in a text that ends a party's command, or a party the label holder's",
    outcome="control characters are replaced in every error that a command prints",
)
def test_errors_of_commands_have_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise DataError(f"north lacks ids, such as {TRICK}.\nAnd a line of ours.")

    monkeypatch.setattr(run, "_compressors", fail)
    assert main(["compressors"]) == 2
    shown = capsys.readouterr().err
    assert shown == "efvfl: north lacks ids, such as ?]0;renamed??[2Jall is well?.\nAnd a line of ours.\n"
