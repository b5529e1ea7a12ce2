"""``weft edge support-bundle`` and ``weft hub support-bundle``: what others need to help, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from weft.commands.set_up.new_files import write_new
from weft.commands.support.secrets import Secrets

if TYPE_CHECKING:
    from weft.config.models import EdgeConfig, HubConfig

PART_BYTES_MAX = 2 << 20
"""Longest part; of a log the end counts, of others the begin."""
COMMAND_S_MAX = 60.0
LOG_LINES = 5000
_LIBRARIES = (
    "weft-fabric", "aiohttp", "argon2-cffi", "cbor2", "click", "cryptography", "deltalake", "msgspec", "obstore",
    "pyarrow", "pyspark", "pyyaml", "uvloop", "websockets", "zstandard",
)  # fmt: skip


class Bundle:
    """The parts of one archive, each without secrets and with a bound.

    Args:
        config: the node's configuration.
        environment: variables of this process, whose secrets are taken out.
    """

    def __init__(self, config: EdgeConfig | HubConfig, environment: Mapping[str, str]) -> None:
        plain = msgspec.to_builtins(config, enc_hook=str)
        self._secrets = Secrets(plain, environment)
        self.parts: dict[str, bytes] = {}
        self.missing: dict[str, str] = {}
        """Part -> why it is not there."""
        self.add_json("config.json", self._secrets.settings(plain))
        self.add_json("machine.json", _machine())

    def add(self, name: str, text: str) -> None:
        """Add a part. Of one that is too long the end counts."""
        data = self._secrets.removed_from(text[-PART_BYTES_MAX:]).encode()
        self.parts[name] = data[-PART_BYTES_MAX:]

    def add_json(self, name: str, value: Any) -> None:
        """Add a part from plain values."""
        self.add(name, json.dumps(value, indent=1, default=str) + "\n")

    def add_command(self, name: str, *arguments: str) -> None:
        """Add what a command of Weft says, or why it says nothing. It is a process of its own, and has its time."""
        self._add_run(name, [sys.executable, "-m", "weft", *arguments])

    def add_log(self, unit: str, path: str | None) -> None:
        """Add the end of a node's log: of a file, or what the journal of systemd has of a unit."""
        if path is not None:
            try:
                with open(path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - PART_BYTES_MAX))
                    self.add("log.txt", file.read(PART_BYTES_MAX).decode("utf-8", "replace"))
            except OSError as error:
                self.missing["log.txt"] = f"{path}: {error.strerror}"
        elif shutil.which("journalctl") is None:
            self.missing["log.txt"] = "there is no journal of systemd. Name the node's log with --log"
        else:
            self._add_run("log.txt", ["journalctl", "--no-pager", f"--lines={LOG_LINES}", f"--unit={unit}"])

    def write(self, path: str) -> None:
        """Write the archive, new and for its owner alone."""
        self.add_json("missing.json", self.missing)
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name, data in sorted(self.parts.items()):
                about = tarfile.TarInfo(f"weft-support/{name}")
                about.size, about.mode, about.mtime = len(data), 0o600, int(time.time())
                archive.addfile(about, io.BytesIO(data))
        write_new({path: made.getvalue()})

    def _add_run(self, name: str, command: Sequence[str]) -> None:
        try:
            done = subprocess.run(command, check=False, capture_output=True, timeout=COMMAND_S_MAX)
        except subprocess.TimeoutExpired:
            self.missing[name] = f"`{' '.join(command)}` took more than {COMMAND_S_MAX:.0f} s"
            return
        except OSError as error:
            self.missing[name] = f"`{' '.join(command)}`: {error.strerror}"
            return
        said = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
        if not said.strip():
            self.missing[name] = f"`{' '.join(command)}` said nothing (exit status {done.returncode})"
        else:
            self.add(name, said)


def _machine() -> dict[str, Any]:
    versions = {}
    for each in _LIBRARIES:
        try:
            versions[each] = metadata.version(each)
        except metadata.PackageNotFoundError:
            continue
    return {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions,
        "python": sys.version,
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "memory": _lines("/proc/meminfo", 5),
        "uptime": _lines("/proc/uptime", 1),
    }


def _lines(path: str, count: int) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096).splitlines()[:count]
    except OSError:
        return []
