"""S3-compatible servers as tests need them: built by Go once, and killed and started again on one port and folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.demo.fabric import free_port
from tests.support import third_party
from tests.support.waiting import wait_until
from weft.storage.object_store import ObjectStore, open_store

START_S_MAX = 30
ACCESS, SECRET = "weft", "weft-secret"
BUCKET = "weft-test"


@dataclass(frozen=True, eq=False)
class Kind:
    """A server that ``go install`` builds."""

    package: third_party.Go
    command: Callable[[str, str, str], list[str]]
    """Arguments that run it, from its binary, address with port, and folder."""
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.package.binary


VERSITYGW = Kind(
    third_party.VERSITYGW,
    lambda binary, address, folder: [
        binary,
        "--port",
        address,
        "--access",
        ACCESS,
        "--secret",
        SECRET,
        "--quiet",
        "posix",
        folder,
    ],
    {},
)
MINIO = Kind(
    third_party.MINIO,
    lambda binary, address, folder: [binary, "server", "--quiet", "--address", address, folder],
    {"MINIO_ROOT_USER": ACCESS, "MINIO_ROOT_PASSWORD": SECRET},
)


def installed(kind: Kind) -> str | None:
    """Return the path of a server that is there: in the PATH, in Go's own folder, or built by an earlier test."""
    return None if kind.package.present() is None else kind.package.program()


def built(kind: Kind) -> str:
    """Return the path of a server, built now if need be, which takes minutes once.

    Raises:
        LookupError: it is not there and cannot be built here; the sentence says why.
    """
    return kind.package.program()


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether something listens on a port of this machine."""
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


class S3Server:
    """A server over a folder, whose sub-folders are its buckets; there is one bucket.

    Args:
        binary: as ``installed`` or ``built`` returns it.
    """

    uri = f"s3://{BUCKET}"

    def __init__(self, kind: Kind, binary: str, folder: Path, address: str = "127.0.0.1") -> None:
        (folder / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self._address = address
        self._command = kind.command(binary, f"{address}:{self.port}", str(folder))
        self._environment = {**os.environ, **kind.environment}
        self._log_path = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def options(self, port: int | None = None) -> dict[str, str]:
        """Return store options, as ``open_store`` and the environment take them.

        Args:
            port: of what stands in front of the server.
        """
        return {
            "AWS_ENDPOINT_URL": f"http://{self._address}:{port or self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def store(self) -> ObjectStore:
        return open_store(self.uri, self.options())

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        started = self._process

        def is_there() -> bool:
            assert started.poll() is None, f"{self._command[0]} ended by itself; see {self._log_path}"
            return listens(self.port, self._address)

        wait_until(is_there, START_S_MAX, f"the start of {self._command[0]}; see {self._log_path}")

    def kill(self) -> None:
        """Send SIGKILL. Nothing happens to a server that does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
