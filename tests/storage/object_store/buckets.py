"""A real S3 endpoint for tests: moto's server in a process of its own, a fresh bucket for every test."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
START_SECONDS_MAX = 30


@dataclass(frozen=True)
class S3Endpoint:
    """Where the server listens."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        """Store options, as ``open_store`` takes them."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def new_bucket(self) -> str:
        """The URI of a bucket that did not exist."""
        return self.make_bucket(f"weft-{uuid.uuid4().hex}")

    def make_bucket(self, name: str) -> str:
        """The URI of a new bucket of this name."""
        with urlopen(Request(f"{self.url}/{name}", method="PUT"), timeout=30):
            return f"s3://{name}"


@contextmanager
def s3_endpoint() -> Iterator[S3Endpoint]:
    """Run the server on a port that the system chooses."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert server.stderr is not None
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise RuntimeError(f"moto_server did not start: {''.join(lines)}")
        with _drained(server):
            yield S3Endpoint(f"http://127.0.0.1:{found[1]}")
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def server_binary(module: str) -> str | None:
    """The path of a Go server, or None where it is not installed: `CGO_ENABLED=0 go install MODULE` does that."""
    name = module.partition("@")[0].rpartition("/")[2]
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), str(Path.home() / "go" / "bin")]))


@dataclass(frozen=True)
class ServerBucket:
    """One bucket of a server that stores what it says."""

    bucket: str
    options: dict[str, str]


@contextmanager
def versitygw(folder: Path) -> Iterator[ServerBucket]:
    """Run versitygw over a folder, whose sub-folders are its buckets."""
    (folder / "weft-test").mkdir(parents=True)
    binary, port = server_binary(VERSITYGW), _free_port()
    assert binary is not None
    access = ["--access", "weft", "--secret", "weft-secret"]
    command = [binary, "--port", f"127.0.0.1:{port}", *access, "--quiet", "posix", str(folder)]
    with _running(command, port, {}):
        yield ServerBucket("s3://weft-test", _options(port))


@contextmanager
def minio(folder: Path) -> Iterator[ServerBucket]:
    """Run MinIO over a folder."""
    (folder / "weft-test").mkdir(parents=True)
    binary, port = server_binary(MINIO), _free_port()
    assert binary is not None
    command = [binary, "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder)]
    with _running(command, port, {"MINIO_ROOT_USER": "weft", "MINIO_ROOT_PASSWORD": "weft-secret"}):
        yield ServerBucket("s3://weft-test", _options(port))


def _options(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "weft",
        "AWS_SECRET_ACCESS_KEY": "weft-secret",
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, environment: dict[str, str]) -> Iterator[None]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env={**os.environ, **environment}, **quiet)  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _listens(port):
            assert server.poll() is None, f"{command[0]} ended by itself"
            assert time.monotonic() < deadline, f"{command[0]} did not start"
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def _drained(server: subprocess.Popen[str]) -> Iterator[None]:
    """Read the request log to its end, or the server would stop at a full pipe."""
    import threading

    lines = server.stderr
    assert lines is not None
    reader = threading.Thread(target=lambda: [None for _ in lines], daemon=True)
    reader.start()
    try:
        yield
    finally:
        server.kill()
        reader.join(10)
