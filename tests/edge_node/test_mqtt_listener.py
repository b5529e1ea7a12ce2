from pathlib import Path

import pytest

from edge_node.mqtt_listener import MqttSettings
from protocols.mqtt.packets import PingReq, PingResp, Will
from tests.edge_node.mqtt_harness import RawClient, running, until


async def test_connections_over_the_limit_are_refused_with_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, connections_max=2) as node:
        inside = [await RawClient.connect(node.port, name) for name in "ab"]
        for _ in range(3):
            assert await (await RawClient.open(node.port)).receive() is None
        assert node.counters.connections_refused == 3
        assert caplog.text.count("raise connections_max for more") == 1
        inside[0].send(PingReq())
        assert await inside[0].receive() == PingResp()
        await inside[1].close()
        await until(lambda: node.counters.connections == 1)
        await RawClient.connect(node.port, "c")
        assert node.counters.connections_accepted == 3


async def test_close_ends_every_connection_and_publishes_no_will(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        client = await RawClient.connect(node.port, will=Will(b"alarm/1", b"gone"))
        await node.listener.close()
        assert await client.receive() is None
        assert await node.stored("alarms") == []
        with pytest.raises(ConnectionRefusedError):
            await RawClient.open(node.port)


@pytest.mark.parametrize("packet_bytes_max", [128, (16 << 20) + 1])
def test_packet_limits_that_cannot_work_are_refused(packet_bytes_max: int) -> None:
    with pytest.raises(ValueError, match="packet_bytes_max must be"):
        MqttSettings(packet_bytes_max=packet_bytes_max)
