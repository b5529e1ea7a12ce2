"""Traces of messages by AMQP 1.0: the context is an application property."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: pip install weft-fabric[amqp1]")

from proton import Message
from proton.utils import BlockingConnection

from tests.support.collector import collecting
from tests.support.live_node import LiveNode, running
from weft.protocols.message_headers import TRACE

TRACE_ID, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_a_message_has_a_span_under_its_publishers(tmp_path: Path) -> None:
    def send(port: int) -> None:
        connection = BlockingConnection(f"127.0.0.1:{port}", user="guest", password="guest", allowed_mechs="PLAIN")
        sender = connection.create_sender("topic/plant/1")
        sender.send(Message(body="21", properties={"traceparent": f"00-{TRACE_ID}-{PARENT}-01"}))
        sender.send(Message(body="22"))
        connection.close()

    with collecting() as collector:
        text = (
            "node: press-7\ndata_dir: data\nhttp: null\n"
            "listeners: {mqtt: {bind: 127.0.0.1:0}, amqp: {bind: 127.0.0.1:0}}\n"
            f'streams: {{telemetry: {{from: "plant/#"}}}}\ntracing: {{endpoint: "{collector.url}"}}\n'
        )
        async with running(tmp_path, text) as node:
            await asyncio.to_thread(send, node.addresses["amqp"].port)  # type: ignore[union-attr]
            (span,) = await asyncio.to_thread(collector.wait, "weft accept")
            records = await LiveNode(node, tmp_path).stored()
    assert (span.trace, span.parent) == (TRACE_ID, PARENT)
    assert span.attributes["network.protocol.name"] == "amqp"
    assert [dict(record.headers).get(TRACE) for record in records] == [f"00-{TRACE_ID}-{span.span}-01", None]
