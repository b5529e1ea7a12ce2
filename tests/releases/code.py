"""The code of a release out of the history, to run its processes beside those of this state."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = ("bench", "docs", "examples", "tests", "weft/demo/data")


def variables_of(release: str, folder: Path) -> Mapping[str, str]:
    """Write the code that wrote a release's archive into a folder; return the variables by which an interpreter runs
    that code, and its children do.

    Raises:
        LookupError: there is no git, or the history does not reach back so far.
    """
    try:
        commit = _git("log", "-1", "--format=%H", "--", f"tests/releases/{release}.tar.xz").decode().strip()
        leave_out = [f":(exclude){name}" for name in NOT_RUN]
        packed = _git("archive", "--format=tar", commit, "--", ".", *leave_out)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LookupError(f"the code of release {release} is not in the history here: {error}") from error
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:  # Python before 3.11.4, as in Debian 12; the archive is ours
            tar.extractall(folder)
    # Without the second one, `python -m` looks for the code in the current folder first.
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


def level_of(variables: Mapping[str, str]) -> int:
    """Return the highest level that the code of a release knows."""
    asked = "from weft.protocols.chunk_index import LEVEL_MAX; print(LEVEL_MAX)"
    return int(subprocess.check_output([sys.executable, "-c", asked], env={**os.environ, **variables}))


def _git(*arguments: str) -> bytes:
    # The checkout may be another user's: it is only read.
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
