"""Containers cannot be started here: their recipes are at least read."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from acclimate.cli import app, load_commands

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
RECIPES = sorted(path.name for path in DOCKER.iterdir())


def test_extras_and_files_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for path in DOCKER.glob("*.Dockerfile"):
        text = path.read_text()
        named = re.search(r'"\.\[(.*)\]"', text)
        assert named and {*named[1].split(",")} <= {*extras["optional-dependencies"]}
        for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
            assert all((ROOT / name).exists() for name in line.split())


@pytest.mark.parametrize("name", RECIPES)
def test_options_exist(name: str) -> None:
    load_commands()
    root: Any = typer.main.get_command(app)
    known = {flag for option in root.commands["serve"].params for flag in option.opts}
    text = (DOCKER / name).read_text()
    used = {*re.findall(r'"(--[\w-]+)"', text)} - {"--username", "--dbname", "--help"}
    assert used <= known


def test_manifests_are_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    assert {*compose["services"]} == {"database", "serve"}
    service = yaml.safe_load((DOCKER / "kserve.yaml").read_text())
    (container,) = service["spec"]["predictor"]["containers"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in service["spec"]["predictor"]["volumes"]}
