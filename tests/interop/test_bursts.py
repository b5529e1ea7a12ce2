"""Clients that publish thousands of messages in one go, whatever the server's Receive Maximum says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conformance.conftest import Broker
from tests.interop.peer import Options
from tests.interop.peer_programs import MqttJs
from tests.support import forked

MESSAGES = 10_000
TAIL_S_MAX = 60.0

pytestmark = pytest.mark.slow


def payloads(broker: Broker, topic: str) -> list[int]:
    """What the log has of a topic, in its order."""
    command = [sys.executable, "-m", "weft", "edge", "tail", str(broker.config), "kept", "--json", "--filter", topic]
    done = forked.run([*command, "--last", "1000000"], capture_output=True, text=True, timeout=TAIL_S_MAX, check=True)
    return [int(json.loads(line)["payload"]) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_each_message_is_one_record(mqttjs: Path, broker: Broker, version: int, qos: int) -> None:
    """MQTT.js sends past the Receive Maximum, and all again after a disconnect: 0x93 would double what is stored."""
    topic = f"kept/burst/{version}/{qos}"
    peer = MqttJs(Options(broker.port, f"burst-{version}-{qos}", version))
    await peer.connect()
    try:
        await peer.burst(topic, MESSAGES, qos)
        assert payloads(broker, topic) == list(range(MESSAGES))
    finally:
        await peer.drop()
