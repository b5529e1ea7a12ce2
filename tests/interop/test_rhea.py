"""rhea, the AMQP 1.0 client for JavaScript, at a node."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.edge_node.servers.amqp1.harness import amqp, in_thread
from tests.support.processes import Node
from tests.support.third_party import RHEA
from tests.support.waiting import PATIENCE_S

PEER = Path(__file__).parent / "rhea_peer.js"
KILL_PEER = PEER.with_name("rhea_kill_peer.js")
CONFIG = """\
node: press-shop-7
data_dir: data
listeners: {{amqp: {{bind: "127.0.0.1:{port}"}}}}
http: {{bind: "127.0.0.1:0"}}
streams:
  telemetry: {{from: "plant/#"}}
"""


@pytest.fixture(scope="module")
def rhea() -> Path:
    """A folder with rhea in it."""
    try:
        return RHEA.obtain()
    except LookupError as error:
        pytest.skip(str(error))


@pytest.mark.slow
async def test_rhea_sends_and_receives(tmp_path: Path, rhea: Path) -> None:
    async with amqp(tmp_path) as node:
        command = ["node", str(PEER), str(rhea), str(node.port)]
        done = await in_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["accepted"] == 10
        assert sorted(answer["received"]) == [[str(i), i, "plant/1/x"] for i in range(10)]
        assert answer["attempts"] == [0, 0, 1]
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.processes
def test_a_node_is_killed_while_rhea_sends_and_receives(tmp_path: Path, rhea: Path) -> None:
    port = free_port()
    config = tmp_path / "edge.yaml"
    config.write_text(CONFIG.format(port=port))
    accepted = [line.strip() for line in lines_until_killed(config, rhea, port, "send", 200)]
    first = [line.split() for line in lines_until_killed(config, rhea, port, "receive", 60)]
    node = Node("edge", config)
    peer = start(rhea, port, "receive")
    assert peer.stdout is not None
    second: list[list[str]] = []
    try:
        while not second or int(second[-1][0]) < int(accepted[-1]):
            second.append(peer.stdout.readline().split())
    finally:
        peer.kill()
        peer.wait()
        peer.stdout.close()
        node.kill()
    assert accepted == [str(number) for number in range(len(accepted))]
    before = {body for body, _ in first}
    assert set(accepted) <= before | {body for body, _ in second}
    assert [body for body, count in second if body in before and count == "0"] == []  # what comes again is flagged
    assert len(second) == len({body for body, _ in second})


def start(rhea: Path, port: int, mode: str) -> subprocess.Popen[str]:
    """A peer that runs until its connection ends."""
    command = ["node", str(KILL_PEER), str(rhea), str(port), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_until_killed(config: Path, rhea: Path, port: int, mode: str, count: int) -> list[str]:
    """Start a node and a peer, kill the node after so many lines of the peer, and return all of them."""
    node = Node("edge", config)
    peer = start(rhea, port, mode)
    assert peer.stdout is not None
    with peer.stdout:
        found = [peer.stdout.readline() for _ in range(count)]
        node.kill()
        found += peer.stdout.readlines()
    peer.wait()
    assert all(found)
    return found
