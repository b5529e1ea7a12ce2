"""Build the images of the edge node and the hub as OCI archives, without a registry and by any user.

    python -m deploy.images.build dist

``dist`` has the wheel, which `./run build` makes, and gets an archive for each image and architecture. User, command,
variables and volume of an image are those of ``deploy/Containerfile``, which makes images of the same content from a
base of a registry.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from deploy.images import tree
from deploy.images.debian import NotHere
from deploy.images.oci import Layer, write_archive, write_layer
from deploy.release import source_date

KINDS = ("edge", "hub")
NOT_HERE = 3
"""Exit status on a machine that cannot make images."""
PATH = "/usr/bin:/bin"
RECIPE = Path(__file__).parents[1] / "Containerfile"


def main() -> None:
    """Build the images, and print their paths and sizes."""
    parser = argparse.ArgumentParser(description="Build images of the edge node and the hub as OCI archives.")
    parser.add_argument("folder", type=Path, help="folder with the wheel; the archives are written into it")
    parser.add_argument("--kind", action="append", choices=KINDS, help="one of the images; both by default")
    parser.add_argument(
        "--architecture", action="append", choices=tuple(tree.MACHINES), help="one architecture; both by default"
    )
    options = parser.parse_args()
    wheels = sorted(options.folder.glob("weft_fabric-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{options.folder}: expected one wheel of weft-fabric, found {len(wheels)}. Run `./run build`")
    os.umask(0o022)
    try:
        for architecture in options.architecture or tree.MACHINES:
            build(options.folder, wheels[0], architecture, options.kind or KINDS)
    except NotHere as error:
        print(f"no images: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(NOT_HERE)


def build(folder: Path, wheel: Path, architecture: str, kinds: Iterable[str]) -> None:
    """Build images of one architecture. They have the layer of Debian's part in common.

    Raises:
        NotHere: this machine cannot make them.
    """
    date_s = int(os.environ.get("SOURCE_DATE_EPOCH") or source_date(wheel))
    created = datetime.fromtimestamp(date_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = parse_wheel_filename(wheel.name)[1]
    with tempfile.TemporaryDirectory() as temporary:
        root, work = Path(temporary) / "root", Path(temporary)
        root.mkdir()
        tree.system(root, architecture)
        of_debian = names(root)
        debian = write_layer(work / "debian", root, of_debian, owner, date_s)
        for kind in kinds:
            tree.libraries(root, architecture, kind)
            of_libraries = names(root)
            libraries = write_layer(work / "libraries", root, of_libraries - of_debian, owner, date_s)
            tree.weft(root, wheel)
            own = write_layer(work / "weft", root, names(root) - of_libraries, owner, date_s)
            layers = (debian, libraries, own)
            target = folder / f"weft-{kind}-{version}-{architecture}.oci.tar"
            name = f"localhost/weft-{kind}:{version}"
            write_archive(target, name, layers, settings(kind), architecture=architecture, created=created)
            print(f"{target}: {summary(target, layers)}")  # noqa: T201
            shutil.rmtree(root / "opt")


def names(root: Path) -> set[str]:
    """Return the paths of a tree, relative to it."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def owner(name: str) -> int:
    """Return the user of a path."""
    return tree.USER if name == tree.STATE else 0


def summary(target: Path, layers: Iterable[Layer]) -> str:
    """Return the size of an image in words."""
    unpacked = sum(layer.bytes_unpacked for layer in layers)
    return f"{target.stat().st_size / 1e6:.0f} MB, {unpacked / 1e6:.0f} MB unpacked"


def settings(kind: str, recipe: Path = RECIPE) -> dict[str, Any]:
    """Return what an image says of its process, from the recipe's stages ``base`` and the image's own."""
    variables, found = {"PATH": PATH}, dict[str, Any]()
    for word, value in instructions(recipe.read_text(), ("base", kind)):
        if word == "ENV":
            for name, text in (each.split("=", 1) for each in shlex.split(value)):
                variables[name] = text.replace("$PATH", PATH)
        elif word == "CMD":
            found["Cmd"] = json.loads(value)
        elif word == "USER":
            found["User"] = f"{value}:{value}"  # by its number, and the group of the same one
        elif word == "VOLUME":
            found["Volumes"] = {value: {}}
        elif word == "STOPSIGNAL":
            found["StopSignal"] = value
    return {**found, "Env": [f"{name}={value}" for name, value in variables.items()], "WorkingDir": "/"}


def instructions(recipe: str, stages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the instructions of some stages of a recipe: word and the rest of the line."""
    stage = ""
    for line in recipe.splitlines():
        word, _, value = line.partition(" ")
        if word == "FROM":
            stage = value.rpartition(" ")[2]
        elif stage in stages and re.fullmatch(r"[A-Z]+", word):
            yield word, value


if __name__ == "__main__":
    main()
