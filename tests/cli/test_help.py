"""What `efvfl --help` and its like say: every command has a description and examples that are right."""

import argparse
import shlex
from collections.abc import Iterator

import pytest

import efvfl
from efvfl.cli.main import _parser, main


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of all its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from commands(each)


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """The commands at the end of a parser's help."""
    return [line.strip() for line in (parser.epilog or "").splitlines() if line.startswith("  efvfl ")]


EVERY = {parser.prog: parser for parser in commands(_parser())}


def test_all_are_found() -> None:
    assert {"efvfl", "efvfl run", "efvfl serve", "efvfl doctor", "efvfl data get"} <= set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_command_has_a_description_and_examples_that_parse(name: str) -> None:
    parser = EVERY[name]
    assert parser.description
    assert examples(parser)
    for line in examples(parser):
        assert line.startswith(name)
        assert _parser().parse_args(shlex.split(line)[1:]).handler
    for line in f"{parser.description}\n{parser.epilog}".splitlines():
        assert len(line) <= 120
    for action in parser._actions:
        assert action.help or isinstance(action, argparse._SubParsersAction), action.dest


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"efvfl {efvfl.__version__}\n"


def test_an_unknown_command_is_answered_with_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["srve", "federation.toml"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert all(f"'{name.split()[1]}'" in err for name in EVERY if len(name.split()) == 2)
