"""Spark's drivers as processes that tests kill: Python and Java in one group, with a temporary folder of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

GONE_S_MAX = 60.0
_POLL_S = 0.02
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options of a Java that believes what Spark's compilers wrote: it loads 13,000 classes, and no test is about them."""


def archive_of_classes() -> Path | None:
    """Return where the archive of Spark's classes is, once ``tests.support.spark_classes`` has made it.

    None where Java has no archive of its own classes, as that of the wheel: another needs it below.
    """
    found = shutil.which(
        "java", path=os.path.join(os.environ["JAVA_HOME"], "bin") if "JAVA_HOME" in os.environ else None
    )
    below = found and Path(os.path.realpath(found)).parents[1] / "lib" / "server" / "classes.jsa"
    if not below or not below.exists():
        return None
    of = f"{below} {below.stat().st_mtime_ns} {version('pyspark')}"
    return Path(sys.prefix) / f"spark-{zlib.crc32(of.encode()):08x}.jsa"


def _archived() -> str:
    path = archive_of_classes()
    # Java does without an archive that does not fit, and would say so on standard output.
    return f" -XX:SharedArchiveFile={path} -Xlog:disable" if path is not None and path.exists() else ""


LOADING = f"{_UNVERIFIED}{_archived()}"
"""Options with which Java loads Spark's classes quickly."""
QUICK = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData {LOADING}"
"""Options of a Java that lives for seconds: the best compiler would not pay."""


@contextlib.contextmanager
def temporary_of_spark() -> Iterator[dict[str, str]]:
    """Yield the variables of a Spark process that may be killed: what it leaves behind goes with the block."""
    # The name is short: Spark makes sockets in it, whose paths are bounded.
    with tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as folder:
        java = f"{QUICK} -Djava.io.tmpdir={folder}"
        yield {"TMPDIR": folder, "SPARK_SUBMIT_OPTS": java, "SPARK_LAUNCHER_OPTS": java}


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a driver, which leads a process group, and its Java; return when both have gone.

    Java holds folders that the next run opens, and writes into a temporary folder that is to be removed.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(GONE_S_MAX)  # or it stays in the group as a zombie
    until = time.monotonic() + GONE_S_MAX
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(_POLL_S)
