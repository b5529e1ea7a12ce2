"""A user whose sessions change too often has to wait; others do not."""

from __future__ import annotations

from pathlib import Path

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, running
from tests.support.waiting import until
from weft.config.streams import State
from weft.edge_node.sessions.records import StateSettings
from weft.protocols.mqtt.packets import ConnAck, Connect, Disconnect, Properties, ReasonCode, Subscribe, Subscription

SETTINGS = StateSettings(state=State(journal_bytes_per_user=2_000))
FILTERS = tuple(Subscription(f"plant/{number}/{'x' * 600}", 1) for number in range(200))
"""Some 40,000 bytes of journal in each turn: twenty seconds of changes."""


async def code_of_connect(node: BrokerNode, user: str, *, expiry: int) -> int:
    client = await RawClient.open(node.port)
    client.version = 5
    client.send(Connect(user, version=5, username=user, properties=Properties(session_expiry_interval=expiry)))
    answer = await client.receive()
    assert isinstance(answer, ConnAck)
    client.send(Disconnect())
    await client.close()
    return int(answer.code)


async def test_clients_of_a_user_whose_sessions_change_too_often_wait(tmp_path: Path) -> None:
    async with running(tmp_path, state_settings=SETTINGS) as node:
        busy = await RawClient.connect5(node.port, "busy", username="mallory", session_expiry_interval=100)
        busy.send(Subscribe(1, FILTERS))
        await until(lambda: node.counters.subscriptions >= 64)
        assert await busy.silent()
        assert node.counters.subscriptions < len(FILTERS), "the rest of the packet waits"
        assert await code_of_connect(node, "mallory", expiry=100) == ReasonCode.CONNECTION_RATE_EXCEEDED
        assert await code_of_connect(node, "mallory", expiry=0) == 0, "this one is not in the journal"
        assert await code_of_connect(node, "alice", expiry=100) == 0
        (refused,) = node.state.refusals
        assert (refused.bound, str(refused.owner)) == ("state.journal_per_user", "user mallory")
