"""Build the Debian packages of edge node and hub, for this machine's /usr/bin/python3 and each architecture.

    python -m deploy.debian.build dist

``dist`` has the wheel, and gets the packages; `./run packages` makes both. Libraries are those of
``deploy/requirements-*.txt``, by their hashes. Nothing of a package runs while it is made, so it may be for another
architecture. ``dpkg-deb`` writes the archives. Each step is a line on standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import NoReturn

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from deploy.images.stripping import strip
from deploy.images.tree import MACHINES, install, put, put_command, remove_scripts, wanted, wheels_for
from deploy.release import list_components, run, source_date
from docs.tools.manuals import manuals
from weft.cli import cli
from weft.commands.completion import script

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
UNIT_HOME = "/opt/weft"
"""Where the units of ``deploy/`` have their environment."""
PYTHON = "/usr/bin/python3"
PYTHONS = ((3, 11), (3, 12), (3, 13))
NOT_HERE = 3
"""Exit status on a machine that cannot make the package."""
COMMAND_PATH = "/usr/bin/weft"
COMPLETIONS = {
    "bash": "/usr/share/bash-completion/completions/weft",
    "zsh": "/usr/share/zsh/vendor-completions/_weft",
    "fish": "/usr/share/fish/vendor_completions.d/weft.fish",
}
MANUALS = "/usr/share/man/man1"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
BEGAN_S = time.monotonic()
MAINTAINER = "The Weft authors <weft@localhost>"
"""Unless ``DEBFULLNAME`` and ``DEBEMAIL`` name the one who builds, as Debian's own tools have it."""


@dataclass(frozen=True)
class Package:
    """One of the packages."""

    kind: str
    """Word in the names of its unit, its configuration and its libraries: ``edge`` or ``hub``."""
    depends: str
    """What it needs beside Python: Debian's libraries that its compiled ones load."""
    priority: int
    """Where both packages are, the command ``weft`` is that of the higher one."""

    @property
    def name(self) -> str:
        """Name of the package and of its unit."""
        return f"weft-{self.kind}"

    @property
    def home(self) -> str:
        """Where the environment is, relative to the root.

        Not /opt/weft: an installation by hand may be there (docs/how-to/run-under-systemd.md).
        """
        return f"usr/lib/{self.name}"


# An edge's environment lacks the libraries of the hub's commands, a hub's lacks none.
PACKAGES = (Package("edge", "libc6 (>= 2.28)", 10), Package("hub", "libc6 (>= 2.28), libstdc++6", 20))


def main() -> None:
    """Build the packages, and print their paths."""
    parser = argparse.ArgumentParser(description="Build the Debian packages of edge node and hub.")
    parser.add_argument("folder", type=Path, help="folder with the wheel; the packages are written into it")
    kinds = [each.kind for each in PACKAGES]
    parser.add_argument("--kind", action="append", choices=kinds, help="one of the packages; both by default")
    parser.add_argument(
        "--architecture", action="append", choices=tuple(MACHINES), help="one architecture; both by default"
    )
    parser.add_argument("--compress", default="xz", choices=["xz", "zstd", "gzip"], help="compression of the package")
    options = parser.parse_args()
    wheels = sorted(options.folder.glob("weft_fabric-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{options.folder}: expected one wheel of weft-fabric, found {len(wheels)}. Run `./run packages`")
    os.umask(0o022)
    # The same sources give the same bytes: dpkg-deb dates no file later, and Python orders sets alike.
    os.environ.setdefault("SOURCE_DATE_EPOCH", source_date(wheels[0]))
    os.environ["PYTHONHASHSEED"] = "0"
    # The Python below ``stage`` runs here too, and what it compiled by itself would name that place.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    python = interpreter()
    if maintainer() == MAINTAINER:
        print(f"maintainer: {MAINTAINER}; DEBFULLNAME and DEBEMAIL name another", file=sys.stderr)  # noqa: T201
    for architecture in options.architecture or MACHINES:
        for package in PACKAGES:
            if package.kind in (options.kind or kinds):
                made = build(package, architecture, wheels[0], python, options.compress)
                print(made, flush=True)  # noqa: T201


def build(package: Package, architecture: str, wheel: Path, python: str, compress: str) -> Path:
    """Build one package beside the wheel, and return its path."""
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary) / "stage"
        stage.mkdir(0o755)
        version = parse_wheel_filename(wheel.name)[1]
        make_environment(package, architecture, stage, python, wheel)
        say("  list of components, manual pages, scripts")
        links = place_files(package, stage, version)
        facts = {"version": debian_version(version), "architecture": architecture}
        describe(package, stage, links, {**facts, "python": Path(python).name})
        path = wheel.with_name("{}_{version}_{architecture}.deb".format(package.name, **facts))
        say(f"  {compress}, the longest step")
        run(["dpkg-deb", f"-Z{compress}", "--root-owner-group", "--build", str(stage), str(path)])
        return path


def say(what: str) -> None:
    """Print a step that begins, and the seconds that those before it took."""
    print(f"{time.monotonic() - BEGAN_S:4.0f} s  {what}", file=sys.stderr, flush=True)  # noqa: T201


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


def make_environment(package: Package, architecture: str, stage: Path, python: str, wheel: Path) -> None:
    """Install Weft and its libraries below ``stage``, so that they run at their final place."""
    say(f"{package.name} for {architecture}: libraries, by pip")
    home = stage / package.home
    run([python, "-m", "venv", "--without-pip", str(home)])
    (libraries,) = home.glob("lib/python3*/site-packages")
    install(libraries, *wheels_for(architecture, Path(python).name.removeprefix("python")), *wanted(package.kind))
    # By its name: pip would note the path of a file that is given.
    install(libraries, "--no-deps", "--no-index", "--find-links", str(wheel.parent.resolve()), "weft-fabric")
    remove_scripts(libraries)
    for path in libraries.rglob("*.so*"):
        strip(path)
    for path in (home / "bin").iterdir():
        if not path.is_symlink():
            path.unlink()
    put_command(stage, package.home)
    # It names the place where it was made.
    settings = home / "pyvenv.cfg"
    lines = settings.read_text().splitlines(keepends=True)
    settings.write_text("".join(line for line in lines if not line.startswith("command =")))
    say("  byte code")
    # Unchecked: the node writes nothing to /usr, and times of files differ after unpacking.
    compiling = ["compileall", "-qqf", "--invalidation-mode=unchecked-hash", "-s", str(stage), "-p", "/"]
    run([python, "-m", *compiling, str(home / "lib")])


def place_files(package: Package, stage: Path, version: Version) -> dict[str, str]:
    """Put unit, configuration, manual pages and documents into the stage.

    Returns:
        Path under which programs look for a file -> the file. The other package has these paths too, so a link is made
        at installation (``update-alternatives``). The command is first.
    """
    home, documents = f"/{package.home}", stage / "usr/share/doc" / package.name
    unit, example = f"{package.name}.service", f"{package.kind}-package.yaml"
    put(stage / "usr/lib/systemd/system" / unit, (ROOT / "deploy" / unit).read_text().replace(UNIT_HOME, home))
    put(stage / "etc/weft" / f"{package.kind}.yaml", (ROOT / "config/examples" / example).read_text())
    put(documents / "copyright", (HERE / "copyright").read_text().replace("{home}", home))
    put(documents / "changelog", changelog(package.name, version))
    put(documents / "CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text())
    list_components(documents / "sbom.cdx.json", "environment", str(stage / package.home / "bin/python"))
    links = {COMMAND_PATH: f"{home}/bin/weft"}
    for shell, path in COMPLETIONS.items():
        links[path] = f"{home}/share/completion.{shell}"
        put(stage / links[path][1:], script(cli, shell) + "\n")
    pages = sorted(manuals(str(version)).items())
    for name, page in pages:
        links[f"{MANUALS}/{name}.gz"] = f"{home}/share/man/{name}.gz"
        put(stage / package.home / "share/man" / name, page)
    # As Debian wants them; without a time in them.
    manual = [stage / package.home / "share/man" / name for name, _ in pages]
    texts = (documents / "changelog", documents / "CHANGELOG.md", *manual)
    run(["gzip", "-9n", *map(str, texts)])
    return links


def changelog(name: str, version: Version) -> str:
    """Return the changelog in Debian's form: one entry, which leads to that of Weft."""
    date = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    entry = f"{name} ({debian_version(version)}) unstable; urgency=medium"
    return f"{entry}\n\n  * What has changed is in CHANGELOG.md.gz of this folder.\n\n -- {maintainer()}  {date}\n"


def describe(package: Package, stage: Path, links: dict[str, str], facts: dict[str, str]) -> None:
    """Write what dpkg reads: fields, sums, configuration files and scripts.

    Args:
        links: as ``place_files`` has returned them.
        facts: ``version``, ``architecture`` and ``python``.
    """
    files = [path for path in sorted(stage.rglob("*")) if path.is_file() and not path.is_symlink()]
    sums = [f"{md5(path)}  {path.relative_to(stage)}\n" for path in files]
    about, _, described = (HERE / f"{package.name}.description").read_text().partition("\n")
    fields = {
        **facts,
        "name": package.name,
        "maintainer": maintainer(),
        "installed_kib": sum(path.stat().st_size for path in files) // 1024,
        "depends": f"{facts['python']}, adduser, {package.depends}",
        "about": about,
        "described": described.format(**facts).rstrip(),
    }
    put(stage / "DEBIAN/control", (HERE / "control").read_text().format(**fields))
    put(stage / "DEBIAN/conffiles", f"/etc/weft/{package.kind}.yaml\n")
    put(stage / "DEBIAN/md5sums", "".join(sums))
    filled = {
        "@ALTERNATIVES@": " ".join(words_of(links, package.priority)),
        "@FOLDERS@": " ".join(sorted({os.path.dirname(path) for path in links})),
    }
    for name in SCRIPTS:
        text = (HERE / name).read_text()
        for mark, words in filled.items():
            text = text.replace(mark, words)
        put(stage / "DEBIAN" / name, text)
        (stage / "DEBIAN" / name).chmod(0o755)


def words_of(links: dict[str, str], priority: int) -> Iterator[str]:
    """Yield the words of `update-alternatives --install`: the command, and what goes with it."""
    (path, command), *others = links.items()
    yield from (path, "weft", command, str(priority))
    for path, file in others:
        yield from ("--slave", path, path[1:].replace("/", "-"), file)


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
