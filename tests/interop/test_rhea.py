"""rhea, the AMQP 1.0 client for JavaScript, at a node."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.edge_node.servers.amqp1.harness import amqp, in_thread
from tests.interop.conftest import NPM_INSTALL_S_MAX

PEER = Path(__file__).parent / "rhea_peer.js"


@pytest.fixture(scope="module")
def rhea(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rhea in it; skips without npm or network."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed")
    folder = tmp_path_factory.mktemp("rhea")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), "rhea@3"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NPM_INSTALL_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not get rhea in time")
    if done.returncode != 0:
        pytest.skip(f"npm could not get rhea: {done.stderr.strip()[-200:]}")
    return folder


@pytest.mark.slow
async def test_rhea_sends_and_receives(tmp_path: Path, rhea: Path) -> None:
    async with amqp(tmp_path) as node:
        command = ["node", str(PEER), str(rhea), str(node.port)]
        done = await in_thread(subprocess.run, command, capture_output=True, text=True, timeout=25)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["accepted"] == 10
        assert sorted(answer["received"]) == [[str(i), i, "plant/1/x"] for i in range(10)]
        assert answer["attempts"] == [0, 0, 1]
        await asyncio.sleep(0)
