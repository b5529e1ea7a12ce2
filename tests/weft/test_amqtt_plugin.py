"""An amqtt broker with the plug-in: what its clients publish is in the log of a node."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import aiomqtt
import pytest
from amqtt.broker import Broker
from amqtt.errors import PluginInitError

from examples.demo.fabric import free_port
from tests.support.brokers import answers
from tests.support.waiting import until, wait_until
from weft.amqtt_plugin import WeftPlugin
from weft.protocols.batch import Flag, Record, records

LAST_MOMENT_S = 0.5
"""Generous: an fsync on a busy machine."""
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
        (b"plant/a", b"0"): Flag.PUBLISHED_QOS0,
        (b"plant/a", b"1"): Flag(0),
        (b"plant/a", b"2"): Flag.PUBLISHED_QOS2,
        (b"plant/b", b"kept"): Flag.RETAINED,
    }
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
        Broker(
            {
                "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}},
                "plugins": {"weft.amqtt_plugin.WeftPlugin": {"config": str(tmp_path / "none.yaml")}},
            }
        )
    await asyncio.sleep(0)


class Process:
    """amqtt as its page starts it: by its command, with the plug-in in its configuration."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        (folder / "edge.yaml").write_text(NODE.replace("data_dir: data", f"data_dir: {folder}/data"))
        (folder / "amqtt.yaml").write_text(
            f"listeners:\n  default: {{type: tcp, bind: '127.0.0.1:{self.port}'}}\n"
            "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}\n"
            f"  weft.amqtt_plugin.WeftPlugin: {{config: {folder}/edge.yaml}}\n"
        )
        self.start()

    def start(self) -> None:
        with (self._folder / "amqtt.log").open("ab") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).with_name("amqtt"), "-c", self._folder / "amqtt.yaml"], stdout=log, stderr=log
            )
        wait_until(lambda: answers(self.port), what="amqtt's start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.slow
@pytest.mark.processes
async def test_a_killed_amqtt_keeps_what_came_before_its_last_moment_each_once(tmp_path: Path) -> None:
    process = await asyncio.to_thread(Process, tmp_path)
    acknowledged: list[tuple[int, float]] = []
    lost_at_most: set[int] = set()
    clock = asyncio.get_running_loop().time
    number = 0
    try:
        for _ in range(3):
            killed = asyncio.get_running_loop().call_later(0.7, process.kill)
            with contextlib.suppress(aiomqtt.MqttError):
                async with aiomqtt.Client("127.0.0.1", process.port) as client:
                    while True:
                        await client.publish("plant/a", b"%d" % number, 1, timeout=5)
                        acknowledged.append((number, clock()))
                        number += 1
            number += 1  # perhaps it is there
            lost_at_most |= {each for each, at in acknowledged if at > killed.when() - LAST_MOMENT_S}
            await asyncio.to_thread(process.start)
    finally:
        process.kill()
    amqtt = broker(tmp_path, free_port())
    plugin = amqtt.plugins_manager.get_plugin("WeftPlugin")
    assert isinstance(plugin, WeftPlugin)
    await amqtt.start()
    try:
        found = [int(record.payload) for record in await stored(plugin)]
    finally:
        await amqtt.shutdown()
    assert found == sorted(set(found)), "each once, and in its order"
    assert len(acknowledged) > 100
    missing = {each for each, _ in acknowledged} - set(found)
    assert missing <= lost_at_most
