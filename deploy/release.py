"""Write what goes beside the files of a release: lists of components (CycloneDX), checksums, and a signature.

    python -m deploy.release dist [--key FILE]

``dist`` has the files of the release. The key is one of ``ssh-keygen``; a public key names one that an agent holds.
``WEFT_SIGNING_KEY`` names it as well.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
PROJECT = ROOT / "pyproject.toml"
SUMS = "SHA256SUMS"
NAMESPACE = "weft-release"
"""The purpose for which the signature counts (``ssh-keygen -n``): one made for something else is none."""
SETS = ("edge", "hub")
"""Sets of libraries in ``deploy/requirements-*.txt``."""


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description="Write lists of components, checksums and a signature of a release.")
    parser.add_argument("folder", type=Path, help="folder with the files of the release")
    parser.add_argument("--key", default=os.environ.get("WEFT_SIGNING_KEY"), help="SSH key to sign with")
    options = parser.parse_args()
    files = sorted(path.name for path in options.folder.glob("*") if path.is_file())
    if not files:
        sys.exit(f"{options.folder}: there is nothing to release. Run `./run build`")
    if options.key and not Path(options.key).is_file():
        sys.exit(f"{options.key}: there is no such key. `ssh-keygen -t ed25519 -f FILE` makes one")
    # Lists of components are dated, too. Signed apart from `./run build`, they are the same again.
    date_s = os.environ.get("SOURCE_DATE_EPOCH") or source_date(options.folder / files[0])
    os.environ["SOURCE_DATE_EPOCH"] = date_s
    for path in options.folder.glob("*.tar.gz"):
        settle(path, int(date_s))
    version = tomllib.loads(PROJECT.read_text())["project"]["version"]
    for each in SETS:
        list_components(
            options.folder / f"weft-{each}-{version}.cdx.json", "requirements", str(HERE / f"requirements-{each}.txt")
        )
    add_sums(options.folder)
    if not options.key:
        print(f"{SUMS} is not signed: no key is given (--key, WEFT_SIGNING_KEY)")  # noqa: T201
        return
    (options.folder / f"{SUMS}.sig").unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-Y", "sign", "-f", options.key, "-n", NAMESPACE, str(options.folder / SUMS)])


def list_components(target: Path, *source: str) -> None:
    """Write the list of components of an environment or of a file of requirements, in CycloneDX 1.6."""
    # Its warning says that Weft's own dependencies are not set apart from theirs.
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", *source, "--pyproject", str(PROJECT)]
    run([*command, "--output-reproducible", "--spec-version", "1.6", "--of", "JSON", "-o", str(target)])


def settle(path: Path, date_s: int) -> None:
    """Write a source distribution again, so that it does not say when and by whom it was made."""
    with tarfile.open(path) as archive:
        members = [(each, archive.extractfile(each)) for each in archive.getmembers()]
        contents = [(each, b"" if file is None else file.read()) for each, file in members]
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=date_s) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for each, content in sorted(contents, key=lambda pair: pair[0].name):
            plain = tarfile.TarInfo(each.name)
            plain.type, plain.size, plain.linkname, plain.mtime = each.type, each.size, each.linkname, date_s
            plain.mode = 0o755 if each.isdir() or each.mode & 0o100 else 0o644
            archive.addfile(plain, io.BytesIO(content))
    path.write_bytes(packed.getvalue())


def add_sums(folder: Path) -> None:
    """Write the checksums of all files but that of the checksums and its signature."""
    names = sorted(path.name for path in folder.glob("*") if path.is_file() and not path.name.startswith(SUMS))
    (folder / SUMS).write_text(run(["sha256sum", "--", *names], folder))


def source_date(otherwise: Path) -> str:
    """Return the time of the commit in seconds; outside a checkout, that of a file."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else str(int(otherwise.stat().st_mtime))


def run(command: list[str], folder: Path | None = None) -> str:
    """Run a command and return its output. Its own words end this program when it fails."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, cwd=folder)  # noqa: S603
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
