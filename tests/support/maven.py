"""Jars from Maven, with all that they need, copied once into a folder that stays for the next run."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

KEPT = Path.home() / ".cache" / "weft-tests" / "maven"
DOWNLOAD_S_MAX = 600
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weft.tests</groupId> <artifactId>jars</artifactId> <version>1</version> <packaging>pom</packaging>
  <dependencyManagement><dependencies>{instead}</dependencies></dependencyManagement>
  <dependencies>{wanted}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    "</dependency>"
)


def _dependency(coordinates: str) -> str:
    return _DEPENDENCY.format(*coordinates.split(":"))


@functools.cache
def jars(coordinates: str, *instead: str) -> tuple[str, ...]:
    """Return the paths of an artifact and of what it needs at run time.

    Args:
        coordinates: ``GROUP:ARTIFACT:VERSION``.
        instead: artifacts whose versions replace those that it names.

    Raises:
        LookupError: Maven is not installed, or its repository does not have them; the sentence says why.
    """
    folder = KEPT / "_".join(name.replace(":", "_") for name in (coordinates, *instead))
    KEPT.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at once
        if not folder.exists():
            _download(coordinates, instead, folder)
    return tuple(sorted(map(str, folder.glob("*.jar"))))


def _download(coordinates: str, instead: tuple[str, ...], folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise LookupError(f"{coordinates} comes from Maven, which is not installed: apt install maven")
    with tempfile.TemporaryDirectory(dir=KEPT) as temporary:
        pom = _POM.format(wanted=_dependency(coordinates), instead="".join(map(_dependency, instead)))
        (Path(temporary) / "pom.xml").write_text(pom)
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={temporary}/jars"], cwd=temporary, env=_environment(os.environ),
                capture_output=True, text=True, timeout=DOWNLOAD_S_MAX, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LookupError(f"Maven took longer than {DOWNLOAD_S_MAX} s to get {coordinates}") from None
        if done.returncode != 0:
            reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr)
            raise LookupError(f"Maven cannot get {coordinates}: {reason.strip()[:300]}")
        (Path(temporary) / "jars").rename(folder)


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    return {**given, "MAVEN_OPTS": f"{given.get('MAVEN_OPTS', '')} -Xmx384m"}
