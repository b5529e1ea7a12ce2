"""Write ``deploy/requirements-*.txt``: what an image installs, with the hashes of the files.

    PIP_INDEX_URL=... python deploy/requirements.py

Versions are those of ``constraints.txt``. What belongs to Weft and its extras is read from ``pyproject.toml``, and what
those need from the environment that runs this, which must have them. Hashes come from the package index whose simple
pages ``PIP_INDEX_URL`` names.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
import urllib.request
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

FOLDER = Path(__file__).parent
CONSTRAINTS = FOLDER.parent / "constraints.txt"
PROJECT = FOLDER.parent / "pyproject.toml"
SETS: dict[str, list[str]] = {
    "build": ["setuptools==84.2.1"],
    "edge": ["weft-fabric[encryption]"],
    "hub": ["weft-fabric[hub,iceberg,kafka,sql]"],
}
"""File -> what it brings together with all that this requires. Weft itself is left out: it is built from the source."""
LEFT_OUT = ("weft-fabric", "pip")
"""Weft, and what each environment has."""
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
HEAD = """\
# What `pip install --require-hashes` takes for this part of an image: deploy/Containerfile. Written by
# `python deploy/requirements.py` from constraints.txt.
"""


def environments() -> list[dict[str, str]]:
    """Return the machines that images are built for, as markers see them."""
    return [
        {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "platform_machine": machine,
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }
        for python in PYTHONS
        for machine in MACHINES
    ]


def needed(wanted: list[str]) -> dict[str, list[str]]:
    """Return the packages that these need on any of the machines: name -> the Python versions that need it."""
    found: dict[str, set[str]] = {}
    for environment in environments():
        waiting, seen = [Requirement(text) for text in wanted], set[tuple[str, frozenset[str]]]()
        while waiting:
            one = waiting.pop()
            name = canonicalize_name(one.name)
            if (name, frozenset(one.extras)) in seen:
                continue
            seen.add((name, frozenset(one.extras)))
            if name not in LEFT_OUT:
                found.setdefault(name, set()).add(environment["python_version"])
            if one.specifier:  # its version is said here
                continue
            for text in requires(name, one.extras):
                further = Requirement(text)
                further.specifier = SpecifierSet()
                extras = [*one.extras, ""]
                if further.marker is None or any(further.marker.evaluate(environment | {"extra": e}) for e in extras):
                    waiting.append(further)
    return {name: sorted(pythons, key=Version) for name, pythons in sorted(found.items())}


def requires(name: str, extras: set[str]) -> list[str]:
    """Return what a package requires: Weft as ``pyproject.toml`` has it now, others as they are installed."""
    if name != "weft-fabric":
        return distribution(name).requires or []
    project = tomllib.loads(PROJECT.read_text())["project"]
    return [*project["dependencies"], *(text for each in extras for text in project["optional-dependencies"][each])]


def versions() -> dict[str, Version]:
    """Return the version that the constraints give each package."""
    found: dict[str, Version] = {}
    for line in CONSTRAINTS.read_text().splitlines():
        if line and not line.startswith("#"):
            one = Requirement(line)
            found[canonicalize_name(one.name)] = Version(str(one.specifier).removeprefix("=="))
    return found


def hashes(name: str, version: Version) -> list[str]:
    """Return the hashes of the package's files that fit one of the machines: wheels, or else the source."""
    request = urllib.request.Request(  # noqa: S310
        f"{os.environ['PIP_INDEX_URL'].rstrip('/')}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        files = json.load(answer)["files"]
    wheels, sources = set[str](), set[str]()
    for file in files:
        text, of = file["filename"], f"sha256:{file['hashes']['sha256']}"
        # Of other versions, old names may be such as no longer parse.
        if text.endswith(".whl") and f"-{version}-" in text and canonicalize_name(text.split("-")[0]) == name:
            _, its, _, tags = parse_wheel_filename(text)
            if its == version and any(fits(tag) for tag in tags):
                wheels.add(of)
        elif text.endswith(f"-{version}.tar.gz") and parse_sdist_filename(text)[1] == version:
            sources.add(of)
    found = sorted(wheels or sources)
    assert found, f"the index has no file of {name} {version} for these machines"
    return found


def fits(tag: Tag) -> bool:
    """Return whether a wheel with this tag is for one of the machines."""
    numbers = [python.replace(".", "") for python in PYTHONS]
    interpreters = {"py3", "py2.py3", *(f"{kind}{number}" for kind in ("py", "cp") for number in numbers)}
    is_python = tag.interpreter in interpreters or tag.abi == "abi3"
    is_abi = tag.abi in ("none", "abi3", *(f"cp{number}" for number in numbers))
    is_linux = "linux" in tag.platform and tag.platform.endswith(MACHINES)
    return is_python and is_abi and (tag.platform == "any" or is_linux)


def main() -> None:
    """Write the files."""
    if "PIP_INDEX_URL" not in os.environ:
        sys.exit("PIP_INDEX_URL is not set: give it the address of the package index that hashes are to come from")
    of = versions() | {
        canonicalize_name(one.name): Version(str(one.specifier).removeprefix("=="))
        for one in (Requirement(text) for wanted in SETS.values() for text in wanted)
        if one.specifier
    }
    for file, wanted in SETS.items():
        lines = [HEAD]
        for name, pythons in needed(wanted).items():
            marker = "" if len(pythons) == len(PYTHONS) else f' ; python_version <= "{pythons[-1]}"'
            listed = "".join(f" \\\n    --hash={each}" for each in hashes(name, of[name]))
            lines.append(f"{name}=={of[name]}{marker}{listed}\n")
        (FOLDER / f"requirements-{file}.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
