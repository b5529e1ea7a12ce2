"""Arbitrary bytes against the codec of AMQP 0-9-1: what it takes it can say again, what it refuses has a reply code."""

from __future__ import annotations

from tests.fuzz import target
from weft.edge_node.ingest.record import Destination, Gathering, Route
from weft.edge_node.servers.amqp.client import Target, Targets
from weft.protocols.amqp.content import read_content_header, read_properties, write_content, write_properties
from weft.protocols.amqp.frames import (
    FRAME_BYTES_MIN,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    AmqpError,
    frame,
    frame_end,
    read_frame,
    scan,
)
from weft.protocols.amqp.methods import commands, read_method, write_method

LIMIT = 128 << 10
PLAIN, TYPED = b"\0\0", b"\x90\x00\x04text\x02"


class _Channel:
    def published(self, count: int) -> None:
        assert count > 0


PUBLISH = write_method(commands.Basic.Publish(0, "amq.topic", "a.b"), 1)
FORMS = Targets(lambda: 0, lambda _: True)
ROUTE = Route(Destination((1,), False, False), live=False, marked=False)
FORMS.remember(PUBLISH, Target(_Channel(), b"\0\1", b"a/b", (), ROUTE))


def _codec(data: bytes) -> None:
    at = 0
    try:
        while True:
            at = _scan(data, at)
            found = read_frame(data, at, LIMIT)
            if found is None:
                end = frame_end(data, at, LIMIT)
                assert end is None or end > len(data)
                return
            one, end = found
            assert at + 8 <= end <= len(data)
            if one.kind == METHOD:
                _check_method(one.payload)
            elif one.kind == HEADER:
                _, properties = read_content_header(one.payload)
                _check_properties(properties)
            at = end
    except AmqpError as error:
        _check_refusal(error)


def _check_refusal(error: AmqpError) -> None:
    assert error.code >= 300, error
    assert len(error.text.encode()) <= 255


def _scan(data: bytes, at: int) -> int:
    """Whatever the fast scan takes, the decoder takes too, as three frames."""
    gathered = Gathering()
    end = scan(data, at, FORMS, gathered, len(data))
    taken = sum(len(run.keys) for run in gathered.groups.values())
    for run in gathered.groups.values():
        for payload in run.payloads:
            for kind in (METHOD, HEADER, 3):
                found = read_frame(data, at, LIMIT)
                assert found is not None
                assert found[0].kind == kind
                at = found[1]
            assert found is not None
            assert found[0].payload == payload
    assert at == end
    assert taken or at == end
    return end


def _check_method(payload: bytes) -> None:
    method = read_method(payload)
    try:
        again = write_method(method, 1)
    except ValueError:
        return  # a decimal of more than 32 bits is read from none; names of 256 bytes are not either
    assert repr(dict(read_method(again[7:-1]))) == repr(dict(method))


def _check_properties(data: bytes) -> None:
    headers = read_properties(data).headers
    assert repr(read_properties(write_properties(headers)).headers) == repr(headers)


def _seeds() -> list[bytes]:
    connection = commands.Connection
    start_ok = connection.StartOk({"capabilities": {"a": True}, "n": [1, None, {"x": 0.5}]}, "PLAIN", "\0guest\0guest")
    methods = (
        start_ok,
        connection.TuneOk(10, 4096, 5),
        connection.Open("/"),
        commands.Queue.Declare(0, "q", arguments={"x": 1}),
        commands.Basic.Consume(0, "q", "tag"),
        commands.Basic.Ack(1, True),
        connection.Close(200, "bye", 0, 0),
    )
    table = b"\x20\x00" + len(b"\x01dD\x02\0\0\0\x07\x01tT\0\0\0\0\0\0\0\x09").to_bytes(4, "big")
    table += b"\x01dD\x02\0\0\0\x07\x01tT\0\0\0\0\0\0\0\x09"
    void = b"\0V" * 30_000
    nested = b"\x01nF\0\0\x40\0" * 2_000
    return [
        PROTOCOL_HEADER,
        b"".join(write_method(method, 1) for method in methods),
        (PUBLISH + write_content(1, PLAIN, b"body", FRAME_BYTES_MIN)) * 3,
        PUBLISH + write_content(1, TYPED, b"body", FRAME_BYTES_MIN) + PUBLISH + write_content(1, PLAIN, b"", 4096),
        PUBLISH + write_content(1, table, bytes(9_000), FRAME_BYTES_MIN),
        frame(HEADER, 1, b"\0\x3c\0\0" + bytes(8) + b"\x20\0" + len(void).to_bytes(4, "big") + void),
        frame(HEADER, 1, b"\0\x3c\0\0" + bytes(8) + b"\x20\0" + len(nested).to_bytes(4, "big") + nested),
        frame(METHOD, 1, b"\0\x3c\0\xff"),
        b"\x08\0\0\0\0\0\0\xce" * 9_000,
    ]


TARGETS = {"amqp": target.Target(_codec, _seeds, memory_per_byte=64)}
