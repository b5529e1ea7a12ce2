"""A real S3 endpoint for tests: moto's server in a process of its own, a fresh bucket for every test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Protocol
from urllib.request import Request, urlopen

import pytest

from examples.demo.fabric import free_port
from tests.support.s3_servers import START_S_MAX, listens
from tests.support.third_party import AZURITE, FAKE_GCS
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[3]


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
        with urlopen(Request(f"{self.url}/{name}", method="PUT"), timeout=PATIENCE_S):
            return f"s3://{name}"


@contextmanager
def s3_endpoint() -> Iterator[S3Endpoint]:
    """Run the server on a port that the system chooses."""
    command = [sys.executable, "-m", "tests.storage.object_store.moto_server"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
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
        reader.join(PATIENCE_S)


# --- Emulators of Azure Blob Storage and Google Cloud Storage for tests: installed once, a fresh bucket for every
# test
#
# Azurite comes from npm. fake-gcs-server is built by Go; ``gcs_front`` gives it the API that obstore speaks.


BLOBS = "node_modules/azurite/dist/src/blob/main.js"
"""Azurite's program for blobs."""
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that Azurite's documentation publishes for everyone."""


@dataclass(frozen=True)
class AzureEndpoint:
    """Azurite's address."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        """Store options, as ``open_store`` and the environment take them."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
        }

    def new_bucket(self) -> str:
        """The URI of a container that did not exist."""
        name, date = f"weft-{uuid.uuid4().hex}", formatdate(usegmt=True)
        fields = f"x-ms-date:{date}\nx-ms-version:2023-11-03"
        signed = "\n".join(["PUT", *[""] * 11, fields, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2023-11-03",
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Type": "",
        }
        url = f"{self.url}/{ACCOUNT}/{name}?restype=container"
        with urlopen(Request(url, method="PUT", data=b"", headers=headers), timeout=PATIENCE_S):
            return f"az://{name}"


@dataclass(frozen=True)
class GoogleEndpoint:
    """Address of the front, and of the server behind it."""

    url: str
    server: str

    @property
    def options(self) -> dict[str, str]:
        """Store options, as ``open_store`` and the environment take them."""
        account = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return {
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**account, "gcs_base_url": self.url}),
            "GOOGLE_BASE_URL": self.url,
        }

    def new_bucket(self) -> str:
        """The URI of a bucket that did not exist."""
        name = f"weft-{uuid.uuid4().hex}"
        body, headers = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
        url = f"{self.server}/storage/v1/b?project=test"
        with urlopen(Request(url, method="POST", data=body, headers=headers), timeout=PATIENCE_S):
            return f"gs://{name}"


class Endpoint(Protocol):
    """A server that keeps buckets."""

    @property
    def url(self) -> str: ...
    @property
    def options(self) -> dict[str, str]: ...
    def new_bucket(self) -> str: ...


@contextmanager
def bucket_server(scheme: str, folder: Path) -> Iterator[Endpoint]:
    """Run the server for a scheme of stores; the test is skipped where it cannot be installed."""
    servers: dict[str, Callable[[Path], AbstractContextManager[Endpoint]]] = {
        "s3": lambda _: s3_endpoint(),
        "gs": google_endpoint,
        "az": azure_endpoint,
    }
    try:
        with servers[scheme](folder) as endpoint:
            yield endpoint
    except LookupError as missing:
        pytest.skip(str(missing))


@contextmanager
def azure_endpoint(folder: Path) -> Iterator[AzureEndpoint]:
    """Run Azurite over a folder."""
    port = free_port()
    command = [
        "node",
        str(AZURITE.obtain() / BLOBS),
        "--silent",
        "--disableTelemetry",
        "--skipApiVersionCheck",
        "--location",
        str(folder),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
    ]
    with _running(command, port, folder):
        yield AzureEndpoint(f"http://127.0.0.1:{port}")


@contextmanager
def google_endpoint(folder: Path) -> Iterator[GoogleEndpoint]:
    """Run fake-gcs-server with its objects in memory, and the front."""
    port = free_port()
    server = f"127.0.0.1:{port}"
    command = [
        FAKE_GCS.program(),
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-backend",
        "memory",
        "-public-host",
        server,
        "-log-level",
        "error",
    ]
    front = [sys.executable, "-m", "tests.storage.object_store.gcs_front", f"http://{server}"]
    with _running(command, port, folder), subprocess.Popen(front, cwd=ROOT, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        try:
            yield GoogleEndpoint(shown.stdout.readline().strip(), f"http://{server}")
        finally:
            shown.kill()


@contextmanager
def _running(command: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "NODE_ENV": "production"})

    def is_there() -> bool:
        assert process.poll() is None, f"{command[0]} ended by itself; see {folder}/server.log"
        return listens(port)

    try:
        wait_until(is_there, START_S_MAX, f"the start of {command[0]}; see {folder}/server.log")
        yield
    finally:
        process.kill()
        process.wait()


# --- Fixtures of servers that keep buckets, for the conftest files of the folders that use them


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Endpoint]:
    with s3_endpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with bucket_server("gs", tmp_path_factory.mktemp("google")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with bucket_server("az", tmp_path_factory.mktemp("azure")) as endpoint:
        yield endpoint
