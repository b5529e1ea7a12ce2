"""A real S3 endpoint for tests: moto's server in a process of its own, a fresh bucket for every test."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from tests.support.waiting import PATIENCE_S

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
