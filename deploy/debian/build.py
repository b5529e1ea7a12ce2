"""Build the Debian package of the edge node, for this machine's architecture and its /usr/bin/python3.

    python -m deploy.debian.build dist

``dist`` has the wheel, which `./run build` makes, and gets the package. Libraries are those of
``deploy/requirements-edge.txt``, by their hashes. ``dpkg-deb`` writes the archive.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from deploy.release import list_components, run, source_date
from docs.tools.manuals import manuals
from weft.cli import cli
from weft.commands.set_up.completion import script

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOME = "usr/lib/weft-edge"
"""Not /opt/weft: an installation by hand may be there (docs/how-to/run-under-systemd.md)."""
UNIT_HOME = "/opt/weft"
"""Where the units of ``deploy/`` have their environment."""
PYTHON = "/usr/bin/python3"
PYTHONS = ((3, 11), (3, 12), (3, 13))
NOT_HERE = 3
"""Exit status on a machine that cannot make the package."""
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/weft",
    "zsh": "usr/share/zsh/vendor-completions/_weft",
    "fish": "usr/share/fish/vendor_completions.d/weft.fish",
}
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
MAINTAINER = "The authors of Weft <weft@localhost>"
"""Unless ``DEBFULLNAME`` and ``DEBEMAIL`` name the one who builds, as Debian's own tools have it."""


def main() -> None:
    """Build the package, and print its path."""
    parser = argparse.ArgumentParser(description="Build the Debian package of the edge node.")
    parser.add_argument("folder", type=Path, help="folder with the wheel; the package is written into it")
    parser.add_argument("--compress", default="xz", choices=["xz", "zstd", "gzip"], help="compression of the package")
    options = parser.parse_args()
    wheels = sorted(options.folder.glob("weft_fabric-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{options.folder}: expected one wheel of weft-fabric, found {len(wheels)}. Run `./run build`")
    os.umask(0o022)
    # The same sources give the same bytes: dpkg-deb dates no file later, and Python orders sets alike.
    os.environ.setdefault("SOURCE_DATE_EPOCH", source_date(wheels[0]))
    os.environ["PYTHONHASHSEED"] = "0"
    # The Python below ``stage`` runs here too, and what it compiled by itself would name that place.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder) / "stage"
        stage.mkdir(0o755)
        version = parse_wheel_filename(wheels[0].name)[1]
        python = interpreter()
        make_environment(stage, python, wheels[0])
        place_files(stage, version)
        path = pack(stage, options.folder, version, python, options.compress)
    print(path)  # noqa: T201


def interpreter() -> str:
    """Return the versioned path of the system's Python. The libraries fit this one alone, so the package needs it."""
    if shutil.which("dpkg-deb") is None:
        not_here("dpkg-deb is not installed")
    said = run([PYTHON, "-c", "import sys; print(*sys.version_info[:2])"]) if Path(PYTHON).exists() else ""
    version = tuple(map(int, said.split()))
    if version not in PYTHONS:
        names = ", ".join(".".join(map(str, each)) for each in PYTHONS)
        not_here(f"{PYTHON} is not one of {names}, and the package runs with the system's Python")
    return "{}{}.{}".format(PYTHON.removesuffix("3"), *version)


def not_here(why: str) -> NoReturn:
    """End: this machine cannot make the package, which is no failure of a build."""
    print(f"no Debian package: {why}", file=sys.stderr)  # noqa: T201
    sys.exit(NOT_HERE)


def make_environment(stage: Path, python: str, wheel: Path) -> None:
    """Install Weft and its libraries below ``stage``, so that they run at their final place."""
    home = stage / HOME
    run([python, "-m", "venv", "--without-pip", str(home)])
    pip = [
        sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "--disable-pip-version-check",
        "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:",
    ]  # fmt: skip
    run([*pip, "--require-hashes", "-r", str(ROOT / "deploy/requirements-edge.txt")])
    # By its name: pip would note the path of a file that is given.
    run([*pip, "--no-index", "--find-links", str(wheel.parent.resolve()), "weft-fabric"])
    for path in (home / "bin").iterdir():
        if path.name != "weft" and not path.is_symlink():
            path.unlink()
    # Scripts and pyvenv.cfg name the place where they were made.
    for path in (home / "bin/weft", home / "pyvenv.cfg"):
        lines = path.read_text().replace(str(stage), "").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("command =")))
    # Of scripts the libraries' lists have a sum with the place in it, also of those that are gone.
    for path in home.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("../../../bin/")))
    # Unchecked: the node writes nothing to /usr, and times of files differ after unpacking.
    compiling = ["compileall", "-qqf", "--invalidation-mode=unchecked-hash", "-s", str(stage), "-p", "/"]
    run([python, "-m", *compiling, str(home / "lib")])


def place_files(stage: Path, version: Version) -> None:
    """Put unit, configuration, manual pages and documents where Debian expects them."""
    unit = (ROOT / "deploy/weft-edge.service").read_text().replace(UNIT_HOME, f"/{HOME}")
    put(stage / "usr/lib/systemd/system/weft-edge.service", unit)
    put(stage / "etc/weft/edge.yaml", (ROOT / "config/examples/edge-package.yaml").read_text())
    put(stage / "usr/share/doc/weft-edge/copyright", (HERE / "copyright").read_text())
    put(stage / "usr/share/doc/weft-edge/changelog", (ROOT / "CHANGELOG.md").read_text())
    list_components(stage / "usr/share/doc/weft-edge/sbom.cdx.json", "environment", str(stage / HOME / "bin/python"))
    for shell, path in COMPLETIONS.items():
        put(stage / path, script(cli, shell) + "\n")
    for name, page in manuals(str(version)).items():
        put(stage / "usr/share/man/man1" / name, page)
    # As Debian wants them; without a time in them.
    pages = (stage / "usr/share/doc/weft-edge/changelog", *sorted((stage / "usr/share/man/man1").iterdir()))
    run(["gzip", "-9n", *map(str, pages)])
    (stage / "usr/bin").mkdir()
    (stage / "usr/bin/weft").symlink_to(f"/{HOME}/bin/weft")


def put(path: Path, text: str) -> None:
    """Write a file, and the folders that lead to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pack(stage: Path, folder: Path, version: Version, python: str, compress: str) -> Path:
    """Write the package's own files and let ``dpkg-deb`` make the archive."""
    files = [path for path in sorted(stage.rglob("*")) if path.is_file() and not path.is_symlink()]
    sums = [f"{md5(path)}  {path.relative_to(stage)}\n" for path in files]
    architecture = run(["dpkg", "--print-architecture"]).strip()
    facts = {
        "version": debian_version(version),
        "architecture": architecture,
        "maintainer": maintainer(),
        "installed_kib": sum(path.stat().st_size for path in files) // 1024,
        "python": Path(python).name,
    }
    put(stage / "DEBIAN/control", (HERE / "control").read_text().format(**facts))
    put(stage / "DEBIAN/conffiles", "/etc/weft/edge.yaml\n")
    put(stage / "DEBIAN/md5sums", "".join(sums))
    for name in SCRIPTS:
        shutil.copyfile(HERE / name, stage / "DEBIAN" / name)
        (stage / "DEBIAN" / name).chmod(0o755)
    path = folder / f"weft-edge_{facts['version']}_{architecture}.deb"
    run(["dpkg-deb", f"-Z{compress}", "--root-owner-group", "--build", str(stage), str(path)])
    return path


def md5(path: Path) -> str:
    """Return the sum by which `dpkg --verify` finds files that changed by accident."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def debian_version(version: Version) -> str:
    """Return a version that sorts for Debian as it does for Python: what comes before a release has a tilde.

    >>> [debian_version(Version(text)) for text in ("1.2", "1.2rc1", "1.2.dev3", "1.2rc1.dev3", "1.2.post1+plant.2")]
    ['1.2', '1.2~rc1', '1.2~~dev3', '1.2~rc1~~dev3', '1.2.post1+plant.2']
    """
    text = version.base_version.replace("!", ":")
    if version.pre is not None:
        text += "~{}{}".format(*version.pre)
    if version.post is not None:
        text += f".post{version.post}"
    if version.dev is not None:
        text += f"~~dev{version.dev}"
    return text + (f"+{version.local}" if version.local else "")


def maintainer() -> str:
    """Return the name and address of the one who builds."""
    name, address = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name} <{address}>" if name and address else MAINTAINER


if __name__ == "__main__":
    main()
