"""Hub nodes over a real S3 server, with kills of the nodes and of the server, and stores that fail one node alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.storms import Fabric, storm
from tests.support.s3_servers import MINIO, VERSITYGW, Kind, S3Server, built, installed

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1500)]


def server_of(kind: Kind, folder: Path) -> S3Server:
    """Return the server, built if Go can do that; the test is skipped where it cannot be had."""
    try:
        # MinIO takes ten minutes to build: ./run nightly does it.
        binary = installed(kind) if kind is MINIO else built(kind)
    except LookupError as reason:
        pytest.skip(str(reason))
    if binary is None:
        pytest.skip(f"{kind.name} is not installed; ./run nightly builds it")
    return S3Server(kind, binary, folder)


@pytest.mark.parametrize("kind", [VERSITYGW, MINIO], ids=lambda kind: kind.name)
def test_kills_of_an_s3_server_and_of_two_nodes_lose_and_double_nothing(tmp_path: Path, kind: Kind) -> None:
    with server_of(kind, tmp_path / "server") as server:
        fabric = Fabric(tmp_path, server)

        def kill_hub(chance: random.Random) -> None:
            hub = chance.choice(fabric.hubs)
            hub.kill()
            time.sleep(chance.uniform(0.0, 0.8))
            hub.start()

        def kill_server(chance: random.Random) -> None:
            server.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            server.start()

        hurts: list[Callable[[random.Random], None]] = [kill_hub, kill_server]
        counted = storm(fabric, hurts, times=14, seed=11)
    print(f"{kind.name}: {dict(counted)}")
    assert counted["messages"] > 1000
