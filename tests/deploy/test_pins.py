"""What ``constraints.txt`` pins can be installed by the Python of each distribution that the README names.

Continuous integration's own Python is newer than that of Debian 12, and so would not see it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11.2", "3.12.3", "3.13.5")
"""Of Debian 12, Ubuntu 24.04 and Debian 13."""
SOURCES = ("pyspark", "python-qpid-proton")
"""Have no wheels: their metadata says which Python they want."""
NO_INDEX = ("Max retries exceeded", "Failed to establish a new connection", "Temporary failure in name resolution")


def has_changed() -> bool:
    """Return whether the files differ from where the work began; without git they may."""
    base = (ROOT / ".ci/base").read_text().strip()
    diff = ["git", "diff", "--quiet", base, "--", "constraints.txt", "pyproject.toml"]
    return subprocess.run(diff, cwd=ROOT, capture_output=True, check=False).returncode != 0


def refused(python: str, pins: list[Requirement], target: Path) -> list[str]:
    """Return what pip says of each pin that this Python cannot install. One call of pip names the first of them."""
    said: list[str] = []
    while True:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--retries=1",
                "--dry-run",
                "--no-deps",
                "--ignore-installed",
                "--only-binary=:all:",
                f"--target={target}",
                f"--python-version={python}",
                *(f"{pin.name}{pin.specifier}" for pin in pins),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if any(words in done.stderr for words in NO_INDEX):
            pytest.skip("no package index can be reached")
        if done.returncode == 0:
            return said
        said.append(done.stderr)
        left = [pin for pin in pins if f"found for {pin.name}{pin.specifier}" not in done.stderr]
        if len(left) == len(pins):
            return said
        pins = left


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_each_pin_can_be_had(python: str, tmp_path: Path) -> None:
    if not has_changed():
        pytest.skip("constraints.txt and pyproject.toml are as they were when the work began")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    pins = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    for name in SOURCES:
        with contextlib.suppress(PackageNotFoundError):  # what is compiled is not everywhere
            assert python in SpecifierSet(metadata(name)["Requires-Python"] or ""), name
    assert refused(python, [pin for pin in pins if pin.name not in SOURCES], tmp_path) == []
