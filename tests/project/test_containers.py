"""The container files: read, not run. Every command in them is one of ours, and nobody sees another's folder."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT

from efvfl.cli.main import _parser

FOLDER = ROOT / "examples" / "containers"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
STAGES = DOCKERFILE.split("\nFROM ")


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_runs_a_command_of_ours_in_a_folder_of_its_own(name: str) -> None:
    service = COMPOSE["services"][name]
    options = _parser().parse_args(service["command"])
    owner = name.removesuffix("-align")
    assert options.command == {"bank": "serve", "shop": "join"}[owner] or name.endswith("-align")
    assert service["volumes"] == [f"./{owner}:/org"]
    for path in (options.file, options.dir, options.certs):
        assert path.is_relative_to("/org"), path
    if owner == "shop":
        assert (options.party, options.address) == ("shop", "bank:7143")
    assert not options.insecure
    assert service["user"].startswith("${EFVFL_UID:-10001}")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "environment" not in service  # no secrets in the file
    assert "privileged" not in service


def test_what_one_waits_for_is_opened_by_the_other() -> None:
    listening = _parser().parse_args(COMPOSE["services"]["bank"]["command"]).address
    assert listening == "0.0.0.0:7143"
    assert COMPOSE["services"]["bank"]["hostname"] == "bank"
    assert COMPOSE["services"]["bank-align"]["networks"]["line"]["aliases"] == ["bank"]


def test_the_image_has_the_package_and_no_root() -> None:
    assert all("python:3.11-slim" in stage for stage in re.findall(r"^FROM (.+)$", DOCKERFILE, re.M))
    assert re.findall(r"^USER (.+)$", STAGES[-1], re.M) == ["10001:10001"]
    assert 'ENTRYPOINT ["efvfl"]' in STAGES[-1]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"'\.\[(.+)\]'", DOCKERFILE)
    assert set(wanted.split(",")) <= set(extras)
    assert DOCKERFILE.count("-c constraints.txt") == 2


def test_only_what_is_copied_may_enter_the_build_and_it_exists() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {line.removeprefix("!") for line in rules if line.startswith("!")}
    copied = [
        line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    assert {Path(path).name for paths in copied for path in paths} == allowed
    assert all((ROOT / path).exists() for path in allowed)
