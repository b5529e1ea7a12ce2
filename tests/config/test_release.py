"""The release, of which nodes tell each other."""

from __future__ import annotations

import tomllib
from pathlib import Path

from weft.config.release import SOFTWARE, VERSION


def test_it_is_the_one_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert f"weft {VERSION}" == SOFTWARE
