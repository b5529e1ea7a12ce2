"""The ``fetch`` that browsers have, by Node.js: bodies of every kind, streams, events that continue after the last
one."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.edge_node.servers.http.harness import HttpNode
from tests.support.waiting import PATIENCE_S

SCRIPT = Path(__file__).with_name("fetch.mjs")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js 18 or later")
async def test_fetch_posts_and_reads(http: HttpNode) -> None:
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPT), http.url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found = json.loads(said)
    first = {name: found[name]["first_seq"] for name in ("text", "array", "bytes", "streamed")}
    assert first == {"text": 0, "array": 1, "bytes": 3, "streamed": 4}
    assert found["keyed"] == [[6, None], [6, "true"]]
    assert found["refused"] == 405
    assert found["ids"] == [3, 4, 5, 6], "after the last event that it has seen"
    payloads = [b"21.5", b"1", b'{"v":2}', b"\x00\xff", b'{"n":1}', b'{"n":2}', b"once"]
    assert [record.payload for record in http.stored()] == payloads
