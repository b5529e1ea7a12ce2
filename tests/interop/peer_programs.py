"""MQTT clients that are programs of their own: mosquitto's, and MQTT.js."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.interop.peer import BURST_S_MAX, HOST, MOSQUITTO_MESSAGES, SESSION_EXPIRY_S, Message, Pairs, Queued
from tests.support.waiting import PATIENCE_S


class Mosquitto(Queued):
    """mosquitto_sub and mosquitto_pub: a process for the subscriptions, and one for each publish."""

    PUB, SUB = shutil.which("mosquitto_pub"), shutil.which("mosquitto_sub")
    missing = None if PUB and SUB and shutil.which("stdbuf") else "mosquitto_pub and mosquitto_sub are not installed"

    async def connect(self) -> None:
        self._filters: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self._end_topic = f"end/{self.options.client_id}"
        if self.options.persistent or self.options.will:
            await self._start([])

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        if self._process is not None:
            await self.close()
        await self._start(["--topic", topic_filter, "--qos", str(qos)])

    async def _start(self, filters: list[str]) -> None:
        options = self.options
        command = ["stdbuf", "-oL"]  # it speaks line by line to a terminal only
        command += [str(self.SUB), *self._common(options.client_id), "--debug", "-F", "%j"]
        command += ["--topic", self._end_topic, *filters, "-C", str(MOSQUITTO_MESSAGES)]
        if options.persistent:
            command += ["--disable-clean-session"]
            command += ["-x", str(SESSION_EXPIRY_S)] if options.version == 5 else []
        if (will := options.will) is not None:
            command += [
                "--will-topic",
                will.topic,
                "--will-payload",
                will.payload.decode(),
                "--will-qos",
                str(will.qos),
            ]
            command += ["--will-retain"] if will.retain else []
        self._subscribed.clear()
        self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        self._reading = asyncio.create_task(self._read(self._process))
        await asyncio.wait_for(self._subscribed.wait(), PATIENCE_S)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"{"):
                said = json.loads(line)
                if said["topic"] == self._end_topic:
                    continue
                pairs = tuple(said.get("properties", {}).get("user-properties", {}).items())
                self.messages.put_nowait(
                    Message(said["topic"], said["payload"].encode(), said["qos"], bool(said["retain"]), pairs)
                )
            elif b"received SUBACK" in line:
                self._subscribed.set()

    def _common(self, client_id: str) -> list[str]:
        version = {3: "mqttv31", 4: "mqttv311", 5: "mqttv5"}[self.options.version]
        return ["--host", HOST, "--port", str(self.options.port), "--id", client_id, "--protocol-version", version]

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        command = [str(self.PUB), *self._common(f"{self.options.client_id}-pub"), "-t", topic, "-q", str(qos)]
        command += ["-m", payload.decode()] if payload else ["-n"]
        command += ["-r"] if retain else []
        for name, value in pairs:
            command += ["--property", "PUBLISH", "user-property", name, value]
        process = await asyncio.create_subprocess_exec(*command)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0

    async def close(self) -> None:
        """Bring it to the number of messages after which it goes; further ones find no subscriber and are not kept."""
        if self._process is not None and self._process.returncode is None:
            command = [str(self.PUB), *self._common(f"{self.options.client_id}-end"), "-t", self._end_topic, "-n"]
            ending = await asyncio.create_subprocess_exec(*command, "--repeat", str(MOSQUITTO_MESSAGES))
            assert await asyncio.wait_for(ending.wait(), PATIENCE_S) == 0
            assert await asyncio.wait_for(self._process.wait(), PATIENCE_S) == 0
        await self._read_to_end()

    async def drop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._read_to_end()

    async def _read_to_end(self) -> None:
        if self._reading is not None:
            await self._reading


class MqttJs(Queued):
    """MQTT.js in Node: ``mqttjs_peer.js`` takes commands and gives answers and messages as lines of JSON."""

    folder: Path | None = None
    """Where ``npm install mqtt`` was done."""

    async def connect(self) -> None:
        options = self.options
        assert self.folder is not None
        self._process = await asyncio.create_subprocess_exec(
            "node",
            str(Path(__file__).with_name("mqttjs_peer.js")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(self.folder / "node_modules")},
        )
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())
        will = options.will
        await self._ask(
            "connect",
            port=options.port,
            clientId=options.client_id,
            protocolVersion=options.version,
            clean=not options.persistent,
            expiry=SESSION_EXPIRY_S if options.persistent else 0,
            will=None
            if will is None
            else {"topic": will.topic, "payload": will.payload.decode(), "qos": will.qos, "retain": will.retain},
        )

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if said["kind"] == "message":
                pairs = tuple((pair[0], pair[1]) for pair in said["pairs"])
                self.messages.put_nowait(
                    Message(said["topic"], bytes.fromhex(said["payload"]), said["qos"], said["retain"], pairs)
                )
            else:
                self._answers.put_nowait(said)

    async def _ask(self, do: str, *, seconds: float = PATIENCE_S, **values: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
        answer = await asyncio.wait_for(self._answers.get(), seconds)
        assert answer["kind"] == "done", answer

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self._ask("subscribe", filter=topic_filter, qos=qos)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        await self._ask("publish", topic=topic, payload=payload.hex(), qos=qos, retain=retain, pairs=list(pairs))

    async def burst(self, topic: str, count: int, qos: int) -> None:
        """Publish 0, 1, ... in one go, and wait until the broker has all of them."""
        await self._ask("burst", topic=topic, count=count, qos=qos, seconds=BURST_S_MAX)

    async def close(self) -> None:
        await self._ask("close")
        await self._process.wait()
        await self._reading

    async def drop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading
