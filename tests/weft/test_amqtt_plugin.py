"""An amqtt broker with the plug-in: what its clients publish is in the log of a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiomqtt
import pytest
from amqtt.broker import Broker
from amqtt.errors import PluginInitError

from tests.support.waiting import until
from weft.amqtt_plugin import WeftPlugin
from weft.demo.fabric import free_port
from weft.protocols.batch import Flag, Record, records

NODE = """\
node: a
data_dir: data
http: null
listeners: {}
disk: {budget: 64MiB, segment: 4MiB}
unrouted: refuse
streams: {telemetry: {from: "plant/#"}}
"""


def broker(folder: Path, port: int) -> Broker:
    (folder / "edge.yaml").write_text(NODE)
    return Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
                "weft.amqtt_plugin.WeftPlugin": {"config": str(folder / "edge.yaml")},
            },
        }
    )


async def stored(plugin: WeftPlugin) -> list[Record]:
    log = plugin._node.log
    await log.durable()
    return [record for data in log.read(log.stream("telemetry"), 0, 1 << 24) for record in records(data)]


async def test_what_amqtt_receives_is_stored(tmp_path: Path) -> None:
    port = free_port()
    amqtt = broker(tmp_path, port)
    plugin = amqtt.plugins_manager.get_plugin("WeftPlugin")
    assert isinstance(plugin, WeftPlugin)
    await amqtt.start()
    try:
        async with aiomqtt.Client("127.0.0.1", port) as client:
            for qos in (0, 1, 2):
                await client.publish("plant/a", b"%d" % qos, qos)
            await client.publish("plant/b", b"kept", 1, retain=True)
            await client.publish("elsewhere", b"x", 1)
            await until(lambda: plugin.stored == 4 and plugin.lost == 1)
        found = {(record.key, record.payload): record.flags for record in await stored(plugin)}
    finally:
        await amqtt.shutdown()
    assert found == {
        (b"plant/a", b"0"): Flag.PUBLISHED_QOS0, (b"plant/a", b"1"): Flag(0),
        (b"plant/a", b"2"): Flag.PUBLISHED_QOS2, (b"plant/b", b"kept"): Flag.RETAINED,
    }  # fmt: skip
    amqtt = broker(tmp_path, port)  # the log was released, and has everything
    plugin = amqtt.plugins_manager.get_plugin("WeftPlugin")
    assert isinstance(plugin, WeftPlugin)
    await amqtt.start()
    try:
        assert len(await stored(plugin)) == 4
    finally:
        await amqtt.shutdown()


async def test_a_wrong_configuration_keeps_amqtt_from_starting(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(NODE)
    with pytest.raises(PluginInitError):
        Broker({"listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}},
                "plugins": {"weft.amqtt_plugin.WeftPlugin": {"config": str(tmp_path / "none.yaml")}}})  # fmt: skip
    await asyncio.sleep(0)
