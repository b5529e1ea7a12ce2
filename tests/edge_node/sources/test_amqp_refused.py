"""A consumer of an external queue whose messages the log refuses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pamqp import commands, frame

from tests.edge_node.sources.nodes import running
from tests.edge_node.sources.test_amqp_source import amqp_source
from tests.support.waiting import until
from weft.bounds import RoundRobin
from weft.config.sources import AmqpSource
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.sources.amqp import AmqpConnection, Delivery
from weft.edge_node.sources.connection import Memory, SourceContext, Topics
from weft.edge_node.sources.status import SourceStatus


async def test_nothing_is_taken_behind_a_message_that_the_log_has_refused() -> None:
    """The acknowledgement of a later one says "all up to here", and the broker would delete the one between."""
    ingest = cast(Any, SimpleNamespace(routing=SimpleNamespace(routes_of=lambda identity: None)))
    node = SourceContext(ingest, RoundRobin(lambda: None), time.time_ns)
    taken = list[Any]()

    class Refused(AmqpConnection):
        def _take(self, message: Any) -> None:
            taken.append(message)
            if message.tag == 2:
                self.hold(Pause.DISK)

    settings = AmqpSource(url=("amqp://127.0.0.1",), queue="q")
    none = cast(Any, None)
    connection = Refused(node, SourceStatus("plant", "amqp"), Topics(), Memory(), settings, none, none)
    ahead: Any = connection._ahead
    first, second, third = (Delivery(tag, False, b"", b"", b"", 1, b"x") for tag in (1, 2, 3))
    ahead.extend([first, second, third])
    connection.resume()
    assert taken == [first, second]
    assert list(ahead) == [third]


async def test_a_broker_that_does_not_name_its_capabilities_is_said_to_be_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = {
        "Connection.StartOk": commands.Connection.Tune(),
        "Connection.Open": commands.Connection.OpenOk(),
        "Channel.Open": commands.Channel.OpenOk(),
        "Basic.Qos": commands.Basic.QosOk(),
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(8)
            writer.write(frame.marshal(commands.Connection.Start(server_properties={}), 0))
            while True:
                head = await reader.readexactly(7)
                rest = await reader.readexactly(int.from_bytes(head[3:], "big") + 1)
                _, channel, command = frame.unmarshal(head + rest)
                if command.name in answers:
                    writer.write(frame.marshal(answers[command.name], channel))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        async with running(tmp_path, amqp_source(server.sockets[0].getsockname()[1], "q")) as node:
            await until(lambda: node.source().last_error != "")
            assert "names no capabilities when it greets" in node.source().last_error
        server.close()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
