"""The examples in docstrings run and print what they show."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import efvfl
from efvfl import __all__ as public


def modules_with_examples() -> list[str]:
    """Return the names of all modules of the package whose source contains a doctest."""
    found = []
    for entry in pkgutil.walk_packages(efvfl.__path__, "efvfl."):
        spec = entry.module_finder.find_spec(entry.name, None)
        assert spec is not None
        assert spec.origin is not None
        with open(spec.origin, encoding="utf-8") as file:
            if ">>> " in file.read():
                found.append(entry.name)
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_run(name: str) -> None:
    module = import_module(name)
    assert any(test.examples for test in doctest.DocTestFinder().find(module))
    assert not doctest.testmod(module).failed


@pytest.mark.parametrize("name", public)
def test_public_names_have_an_example(name: str) -> None:
    assert ">>> " in (getattr(efvfl, name).__doc__ or ""), f"the docstring of {name} needs an example"
