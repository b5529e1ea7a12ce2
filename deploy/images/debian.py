"""Files of Debian packages for a machine of any architecture: fetched and laid out by any user, with nothing run.

``apt-get`` chooses, fetches and verifies them against the keys that this machine trusts, with a state of its own in a
temporary folder. No maintainer script runs, so what those would do is in ``tree.py``.
"""

from __future__ import annotations

import platform
import posixpath
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

APT = Path("/etc/apt")
MERGED = ("bin", "lib", "lib64", "sbin")
"""Folders of the root that are links into /usr since Debian 12. Some packages still have files in them."""
DEBIAN = re.compile(r"^(?:URIs: *|deb +(?:\[[^]]*\] *)?)https?://\S+/debian(?:-security)?/?(?:\s|$)", re.MULTILINE)
"""Line of a source that is Debian's own archive. Others could replace its packages."""


class NotHere(Exception):
    """This machine cannot fetch packages of Debian; the sentence says why."""


def release() -> str:
    """Return the code name of this machine's Debian.

    Raises:
        NotHere: it is another system.
    """
    about = platform.freedesktop_os_release()
    if about.get("ID") != "debian" or "VERSION_CODENAME" not in about:
        raise NotHere(
            f"this machine is {about.get('PRETTY_NAME', 'unknown')}, and the files of an image come from Debian"
        )
    return about["VERSION_CODENAME"]


def unpack(names: Sequence[str], architecture: str, root: Path, left_out: Sequence[str] = ()) -> None:
    """Lay out packages and all that they depend on below ``root``, with a record of each for scanners.

    Args:
        architecture: as Debian calls it, such as ``arm64``.
        left_out: packages that others depend on for their installation alone.

    Raises:
        NotHere: apt is missing, knows no archive of Debian, or does not get the packages.
    """
    release()
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as folder:
        for package in _fetched(names, architecture, Path(folder)):
            fields = _output(["dpkg-deb", "--field", str(package)])
            (name,) = re.findall(r"^Package: (\S+)$", fields, re.MULTILINE)
            if name not in left_out:
                _extract(package, root)
                record = root / "var/lib/dpkg/status.d" / name
                record.parent.mkdir(parents=True, exist_ok=True)
                record.write_text(fields)


def _fetched(names: Sequence[str], architecture: str, folder: Path) -> list[Path]:
    for name in ("lists/partial", "archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    _copy_sources(folder / "sources")
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder,
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "--quiet=2", *(f"--option={name}={value}" for name, value in settings.items())]
    _output([*apt, "update"])
    _output([*apt, "install", "--download-only", "--yes", *names])
    return sorted((folder / "archives").glob("*.deb"))


def _copy_sources(folder: Path) -> None:
    """Copy the entries of this machine's apt that are Debian's own archives."""
    count = 0
    for path in (APT / "sources.list", *sorted((APT / "sources.list.d").glob("*"))):
        if not path.is_file() or path.suffix not in (".list", ".sources"):
            continue
        entries = re.split(r"\n\s*\n" if path.suffix == ".sources" else r"\n", path.read_text())
        if kept := [entry for entry in entries if DEBIAN.search(entry)]:
            (folder / path.name).write_text("\n\n".join(kept) + "\n")
            count += len(kept)
    if not count:
        raise NotHere(f"no source in {APT} is an archive of Debian")


def _extract(package: Path, root: Path) -> None:
    """Write a package's files. Their owner is the one who runs this: in an image root has them all."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,  # noqa: S603
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        # Python's filters are younger than Debian 12's Python; apt has verified the package.
        archive.extraction_filter = lambda member, _: member
        for member in archive:
            path = posixpath.normpath(member.name)
            if path.startswith(("/", "..")):
                raise NotHere(f"{package.name} has a file outside of the root: {member.name}")
            if path.partition("/")[0] in MERGED:
                path = f"usr/{path}"
            if member.islnk():
                member.linkname = posixpath.normpath(member.linkname)
            if not ((root / path).is_dir() and (member.isdir() or member.issym())):
                member.name = path
                archive.extract(member, root)
    if process.returncode != 0:
        raise NotHere(f"{package.name} cannot be unpacked: dpkg-deb ended with status {process.returncode}")


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    except FileNotFoundError:
        raise NotHere(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise NotHere(f"{command[0]} {command[-1]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
