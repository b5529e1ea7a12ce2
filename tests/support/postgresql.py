"""A real PostgreSQL for tests: a cluster of its own on loopback, which can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.support.brokers import answers
from tests.support.waiting import wait_until

USER, PASSWORD = "weft", "not-for-logs-3f9c"
START_S_MAX = 60.0
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
_PATH = os.pathsep.join([*map(str, DEBIAN), os.environ.get("PATH", "")])
# Debian's first: the user that PostgreSQL runs as may not enter a folder of links in a temporary one.
INITDB, POSTGRES = shutil.which("initdb", path=_PATH), shutil.which("postgres", path=_PATH)


def _has_user(name: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def why_not() -> str | None:
    """Return why there is no PostgreSQL here; None when there is one."""
    if INITDB is None or POSTGRES is None:
        return "PostgreSQL is not installed: apt install postgresql"
    if os.geteuid() == 0 and (shutil.which("setpriv") is None or not _has_user("postgres")):
        return "PostgreSQL does not run as root, and there is no setpriv or no user postgres"
    return None


needs_postgresql = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


class PostgreSql:
    """One server. Its user ``weft`` needs a password, as anywhere.

    Args:
        durable: sync commits, as a server that is not for tests does. What survives the death of processes needs no
            fsync, and no test cuts the power.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        # The server runs as another user, who cannot get into pytest's folders.
        self.folder = Path(tempfile.mkdtemp(prefix="weft-postgresql-"))
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
            shutil.chown(self.folder, "postgres", "postgres")
        self.port = free_port()
        self.password_file = self.folder / "password"
        self.password_file.write_text(PASSWORD)
        self.password_file.chmod(0o644)
        assert INITDB is not None
        self._run(
            INITDB,
            "-D",
            str(self.folder / "data"),
            "-U",
            USER,
            "--auth=scram-sha-256",
            f"--pwfile={self.password_file}",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.start()

    @property
    def url(self) -> str:
        """JDBC URL, without the password."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user={USER}"

    def _run(self, *command: str) -> None:
        environment = {**os.environ, "HOME": str(self.folder)}
        subprocess.run(
            [*self._as_user, *command], env=environment, cwd="/", check=True, capture_output=True, timeout=START_S_MAX
        )

    def start(self) -> None:
        self._spawn()
        # It listens before it lets clients in.
        self._starts += 1
        wait_until(self._is_ready, START_S_MAX, lambda: f"PostgreSQL's start: {self._log()[-500:]}", interval_s=0.1)

    def _spawn(self) -> None:
        assert POSTGRES is not None
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on" if self._durable else "off",
            "shared_buffers": "32MB",
            "max_connections": "20",
        }
        command = [*self._as_user, POSTGRES, "-D", str(self.folder / "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)

    def _log(self) -> str:
        return (self.folder / "log").read_text()

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._spawn()  # it refuses to start while a process of a killed one has the shared memory
        return self._log().count("ready to accept connections") >= self._starts

    def kill(self) -> None:
        """Send SIGKILL; the server's other processes end when they see it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        wait_until(lambda: not answers(self.port), START_S_MAX, "PostgreSQL's end")

    def close(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(START_S_MAX)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def postgresql(*, durable: bool = False) -> Iterator[PostgreSql]:
    """Run a server."""
    server = PostgreSql(durable=durable)
    try:
        yield server
    finally:
        server.close()
