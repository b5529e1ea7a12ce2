"""What ``constraints.txt`` pins can be installed by the Python of each distribution that the README names.

Continuous integration's own Python is newer than that of Debian 12, and so would not see it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.weft.test_distributions import COPIED_NOT

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11.2", "3.12.3", "3.13.5")
"""Of Debian 12, Ubuntu 24.04 and Debian 13."""
SOURCES = ("pyspark", "python-qpid-proton")
"""Have no wheels: their metadata says which Python they want."""
NO_INDEX = ("Max retries exceeded", "Failed to establish a new connection", "Temporary failure in name resolution")


def new_pins() -> list[str]:
    """Return the pins that differ from where the work began; without its history, all.

    What was pinned before has been asked for, and pyproject.toml changes no pin.
    """
    base = (ROOT / ".ci/base").read_text().strip()
    before = subprocess.run(
        ["git", "show", f"{base}:constraints.txt"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#") and line not in before]


def refused(python: str, pins: list[Requirement], target: Path) -> list[str]:
    """Return what pip says of each pin that this Python cannot install. One call of pip names the first of them."""
    said: list[str] = []
    while pins:
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
    return said


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_each_pin_can_be_had(python: str, tmp_path: Path) -> None:
    pins = [Requirement(line) for line in new_pins()]
    if not pins:
        pytest.skip("constraints.txt has the pins that it had when the work began")
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    pins = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    for name in SOURCES:
        with contextlib.suppress(PackageNotFoundError):  # what is compiled is not everywhere
            assert python in SpecifierSet(metadata(name)["Requires-Python"] or ""), name
    assert refused(python, [pin for pin in pins if pin.name not in SOURCES], tmp_path) == []


# --- Images take packages by their hashes: those that CI tested, and all that Weft needs


ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements_of_images", ROOT / "deploy" / "requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", ["edge", "hub"])
def test_the_files_have_what_weft_needs_in_the_versions_of_the_constraints(writer: ModuleType, file: str) -> None:
    listed = dict(ENTRY.findall((ROOT / "deploy" / f"requirements-{file}.txt").read_text()))
    versions = writer.versions()
    assert listed == {name: str(versions[name]) for name in writer.needed(writer.SETS[file])}, (
        "deploy/requirements.py writes them again"
    )


def test_a_hub_has_every_library_that_it_imports(writer: ModuleType) -> None:
    """A machine of the tests has more than a hub: what only some other extra brings would be missing there."""
    distributions = packages_distributions()
    has = set(writer.needed(writer.SETS["hub"]))
    for path in sorted((ROOT / "cloud_hub").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            else:
                continue
            for name in names:
                brought_by = {canonicalize_name(each) for each in distributions.get(name.partition(".")[0], [])}
                assert not brought_by or brought_by & {*has, "weft-fabric"}, f"{path}: {name}"


@pytest.mark.parametrize("file", ["build", "edge", "hub"])
def test_each_package_has_hashes(file: str) -> None:
    text = (ROOT / "deploy" / f"requirements-{file}.txt").read_text()
    for entry in re.split(r"^(?=[a-z])", text.partition("txt.\n")[2], flags=re.MULTILINE)[1:]:
        assert re.fullmatch(r"\S+==[^\\]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", entry), entry


@pytest.mark.slow
@pytest.mark.processes
def test_the_recipe_installs_a_node(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "src", ignore=COPIED_NOT)
    recipe = (ROOT / "deploy" / "Containerfile").read_text()
    commands = [line.removeprefix("RUN ") for line in recipe.splitlines() if line.startswith("RUN ") and "/opt" in line]
    script = "\n".join(commands).replace("/opt", f"{tmp_path}/opt").replace("/src", f"{tmp_path}/src")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(["sh", "-ec", script], check=True, env=os.environ | {"PATH": path, "HOME": str(tmp_path)})
    python = tmp_path / "opt" / "weft" / "bin" / "python"
    subprocess.run(
        [python, "-c", "import weft.cli, weft.cloud_hub.reads.history, deltalake, obstore, pyarrow"],
        check=True,
        cwd=tmp_path,
    )
    assert subprocess.run([python, "-m", "pip", "check"], check=False).returncode == 0
