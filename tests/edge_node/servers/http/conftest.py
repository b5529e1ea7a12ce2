from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.edge_node.servers.http.harness import HttpNode, running


@pytest_asyncio.fixture
async def http(tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with running(tmp_path) as node:
        yield node
