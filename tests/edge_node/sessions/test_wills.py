"""Wills across the end of the node: accepted by CONNACK, a will is published once, whatever happens."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.mqtt.harness import BrokerNode, RawClient, SyncGate, running
from tests.support.waiting import until
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.sessions.records import StateSettings
from weft.edge_node.subscriptions.message import USER_PROPERTIES_MAX
from weft.protocols.mqtt.packets import ConnAck, Connect, Disconnect, Properties, PubAck, Publish, ReasonCode, Will
from weft.storage.segment_log import LogFull

GONE = Will(b"alarm/gone", b"gone", 1)
ENDS = pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])


def delayed(seconds: int) -> Will:
    return Will(b"alarm/late", b"late", 1, False, Properties(will_delay_interval=seconds))


async def alarms(node: BrokerNode) -> list[bytes]:
    """What is in the log of the wills' topics."""
    return [record.payload for record in await node.stored("alarms")]


@ENDS
@pytest.mark.parametrize("expiry", [0, 100])
async def test_a_will_comes_after_the_node_and_only_once(tmp_path: Path, kill: bool, expiry: int) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-10]"""
    async with running(tmp_path, kill=kill) as node:
        watcher = await RawClient.connect(node.port, "watcher", clean_start=False)
        await watcher.subscribe(("alarm/#", 1))
        _lost = await RawClient.connect5(node.port, "lost", will=GONE, session_expiry_interval=expiry)
        assert await alarms(node) == []
    async with running(tmp_path, kill=kill) as node:
        assert node.counters.wills_published == 1
        watcher = await RawClient.connect(node.port, "watcher", clean_start=False)
        assert (await watcher.receive()).payload == b"gone"
        assert await alarms(node) == [b"gone"]
        assert node.counters.sessions == 2 if expiry else 1
    async with running(tmp_path) as node:
        assert node.counters.wills_published == 0
        assert await alarms(node) == [b"gone"]


@ENDS
async def test_a_client_that_said_goodbye_has_no_will_left(tmp_path: Path, kill: bool) -> None:
    """[MQTT-3.14.4-3]"""
    async with running(tmp_path, kill=kill) as node:
        for client_id, expiry in (("short", 0), ("long", 100)):
            client = await RawClient.connect5(node.port, client_id, will=GONE, session_expiry_interval=expiry)
            client.send(Disconnect())
            assert await client.receive() is None
    async with running(tmp_path) as node:
        assert node.counters.wills_published == 0
        assert node.counters.will_bytes == 0


@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.slow), True], ids=["stop", "kill"])
async def test_a_client_that_is_back_before_the_delay_is_over_is_not_missed(tmp_path: Path, kill: bool) -> None:
    """[MQTT-3.1.3-9]: the delay counts from when the node is there again"""
    async with running(tmp_path, kill=kill) as node:
        _open = [
            await RawClient.connect5(node.port, client_id, will=delayed(1), session_expiry_interval=100)
            for client_id in ("back", "lost")
        ]
    await asyncio.sleep(1.1)  # longer than the delay: the node is not there
    async with running(tmp_path) as node:
        back = await RawClient.connect5(node.port, "back", clean_start=False, session_expiry_interval=100)
        assert back.welcome.session_present
        assert await alarms(node) == []
        await until(lambda: node.counters.wills_published == 1)
        assert await alarms(node) == [b"late"]
        assert node.counters.will_bytes == 0


async def test_a_node_that_starts_again_and_again_does_not_put_a_will_off(tmp_path: Path) -> None:
    """[MQTT-3.1.2-8]: the delay counts from the first start without the client"""
    now = time.time_ns()
    for start in range(3):
        async with running(tmp_path, kill=True, wall_clock=lambda: now) as node:
            if start == 0:
                _lost = await RawClient.connect5(node.port, "lost", will=delayed(60), session_expiry_interval=100)
            assert await alarms(node) == ([b"late"] if start == 2 else [])
        now += 60_000_000_000 if start else 0
    async with running(tmp_path, wall_clock=lambda: now + 40_000_000_000) as node:
        assert len(node.mqtt.sessions) == 0, "and so does the expiry of the session"


async def test_a_delay_that_began_before_the_node_ended_goes_on(tmp_path: Path) -> None:
    """[MQTT-3.1.2-8]"""
    async with running(tmp_path, kill=True) as node:
        lost = await RawClient.connect5(node.port, "lost", will=delayed(1), session_expiry_interval=100)
        await lost.close()
        await until(lambda: node.counters.connections == 0)
        await node.durable()
    await asyncio.sleep(1.1)  # the delay is over while the node is not there
    async with running(tmp_path) as node:
        assert await alarms(node) == [b"late"]


async def test_a_clean_start_after_the_node_ends_the_session_and_its_delay(tmp_path: Path) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-4]"""
    async with running(tmp_path, kill=True) as node:
        _lost = await RawClient.connect5(node.port, "lost", will=delayed(60), session_expiry_interval=100)
    async with running(tmp_path) as node:
        assert await alarms(node) == []
        await RawClient.connect5(node.port, "lost", clean_start=True)
        assert await alarms(node) == [b"late"]


async def test_connack_waits_until_the_will_is_durable(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        with gate.held():
            without = await RawClient.connect(node.port, "without")
            client = await RawClient.open(node.port)
            client.send(Connect("with", will=GONE))
            await until(gate.reached.is_set)
            assert await client.silent()
        assert await client.receive() == ConnAck(False, 0)
        await without.close()


async def test_a_will_that_the_log_has_no_room_for_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise LogFull("full")

    async with running(tmp_path, kill=True) as node:
        for client_id in ("one", "two"):
            await (await RawClient.connect(node.port, client_id, will=GONE)).close()
            if client_id == "one":
                await until(lambda: node.counters.wills_published == 1)
                monkeypatch.setattr(node.log, "together", full)
        await until(lambda: node.counters.wills_waiting == 1)
        again = await RawClient.open(node.port)
        again.send(Connect("two", version=5))
        again.version = 5
        assert (await again.receive()).code == ReasonCode.SERVER_BUSY, "the will would be lost"
        assert (await alarms(node)) == [b"gone"]
        monkeypatch.undo()
        await until(lambda: node.counters.wills_waiting == 0)
        assert (await alarms(node)) == [b"gone"] * 2
        assert node.counters.will_bytes == 0
    async with running(tmp_path) as node:
        assert (await alarms(node)) == [b"gone"] * 2


async def test_a_will_that_waited_comes_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise LogFull("full")

    async with running(tmp_path, kill=True) as node:
        client = await RawClient.connect(node.port, "lost", will=GONE)
        monkeypatch.setattr(node.log, "together", full)
        await client.close()
        await until(lambda: node.counters.wills_waiting == 1)
    async with running(tmp_path) as node:
        assert (await alarms(node)) == [b"gone"]


@contextmanager
def slow_database(node: BrokerNode) -> Any:
    """Nothing is written to the database."""
    node.state.retained._requested = True
    yield
    node.state.retained._requested = False
    node.state.retained.flush()


async def test_a_retained_will_is_retained_before_it_is_forgotten(tmp_path: Path) -> None:
    """v3 [MQTT-3.1.2-17], v5 [MQTT-3.1.2-15]"""
    will = Will(b"alarm/gone", b"gone", 1, retain=True)
    async with running(tmp_path, kill=True) as node:
        client = await RawClient.connect(node.port, "lost", will=will)
        with slow_database(node):
            await client.close()
            await until(lambda: node.counters.wills_waiting == 1)
            assert await alarms(node) == []
        await until(lambda: node.counters.wills_published == 1)
        client = await RawClient.connect(node.port, "lost", will=will)
        with slow_database(node):
            await client.close()
            await until(lambda: node.counters.wills_waiting == 1)
            again = await RawClient.connect(node.port, "lost")
            assert node.counters.wills_published == 2, "who comes back does not wait for that"
            await again.close()
    async with running(tmp_path) as node:
        watcher = await RawClient.connect(node.port, "watcher")
        await watcher.subscribe(("alarm/#", 1))
        message = await watcher.receive()
        assert (message.payload, message.retain) == (b"gone", True)
        assert await alarms(node) == [b"gone"] * 2


async def test_wills_have_a_bound(tmp_path: Path) -> None:
    async with running(tmp_path, limits=EdgeLimits(wills_bytes=2000, user_share=1)) as node:
        large = Will(b"alarm/gone", bytes(1000), 1)
        client = await RawClient.connect(node.port, "one", will=large)
        for version in (4, 5):
            refused = await RawClient.open(node.port)
            refused.version = version
            refused.send(Connect("two", version=version, will=large))
            assert (await refused.receive()).code == (3 if version == 4 else ReasonCode.QUOTA_EXCEEDED)
        assert node.counters.wills_refused == 2
        again = await RawClient.connect(node.port, "one", will=large)  # in place of the first one's
        assert await client.receive() is None
        again.send(Disconnect())
        assert await again.receive() is None
        assert (await RawClient.connect(node.port, "two", will=large)).welcome.code == 0


async def test_a_will_with_more_properties_than_a_record_holds_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        client = await RawClient.open(node.port)
        client.version = 5
        properties = Properties(user_properties=(("a", "b"),) * (USER_PROPERTIES_MAX + 1))
        client.send(Connect("many", version=5, will=Will(b"alarm/gone", b"", 1, False, properties)))
        assert (await client.receive()).code == ReasonCode.QUOTA_EXCEEDED


async def test_a_session_that_cannot_be_kept_now_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that comes back while the journal has no room loses neither its messages nor its delayed will."""
    settings = StateSettings(state=State(save_interval_s=3600))
    async with running(tmp_path, state_settings=settings) as node:
        client = await RawClient.connect5(node.port, "c", will=delayed(60), session_expiry_interval=100)
        await client.subscribe(("plant/#", 1))
        await client.close()
        await until(lambda: node.counters.connections == 0)
        node.state.counters.journal_bytes += settings.state.journal_bytes
        again = await RawClient.open(node.port)
        again.version = 5
        again.send(Connect("c", version=5, clean_start=False, properties=Properties(session_expiry_interval=100)))
        assert (await again.receive()).code == ReasonCode.SERVER_BUSY
        node.state.counters.journal_bytes -= settings.state.journal_bytes
        (session,) = node.mqtt.sessions.all()
        assert session.will == delayed(60)
        assert session.will_at is not None
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"plant/a", b"kept", 1, 1))
        assert await device.receive() == PubAck(1)
        again = await RawClient.connect5(node.port, "c", clean_start=False, session_expiry_interval=100)
        assert again.welcome.session_present
        assert (await again.receive()).payload == b"kept"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("restricted", [False, True])
async def test_a_will_to_the_servers_own_topics_is_dropped(tmp_path: Path, version: int, restricted: bool) -> None:
    """Bridges of Mosquitto have one, ``$SYS/broker/connection/{name}/state``, and would not connect without it"""
    async with running(tmp_path) as node:
        if restricted:
            node.authenticator.may = lambda what, _topic: what != "publish"
        will = Will(b"$SYS/broker/connection/bridge/state", b"0", 1, True)
        watcher = await RawClient.connect(node.port, "watcher")
        await watcher.subscribe(("$SYS/broker/connection/#", 1))
        bridge = await RawClient.connect(node.port, "bridge", version=version, will=will, clean_start=False)
        assert all(session.will is None for session in node.mqtt.sessions.all())
        bridge.writer.transport.abort()
        await until(lambda: node.counters.connections == 1)
        assert await watcher.silent()
        assert not node.mqtt.retained.match("$SYS/#")
        assert (node.counters.wills_published, node.counters.wills_refused) == (0, 0)
