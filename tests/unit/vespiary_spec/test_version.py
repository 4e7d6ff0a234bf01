"""The version as a constant is the one that is released."""

import tomllib
from pathlib import Path

from vespiary_spec.version import VERSION

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_it_is_the_version_of_the_project():
    assert tomllib.loads(PROJECT.read_text())["project"]["version"] == VERSION
