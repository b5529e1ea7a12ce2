from __future__ import annotations

import inspect
from typing import Any

import pytest
from pamqp import frame as reference

from weft.protocols.amqp.frames import FRAME_BYTES_MIN, AmqpError, ReplyCode, read_frame
from weft.protocols.amqp.methods import METHODS, Method, commands, name_of, read_method, write_method

VALUES: dict[str, Any] = {
    "shortstr": "a.b",
    "longstr": "secret",
    "table": {"x": 1, "y": "z"},
    "bit": True,
    "octet": 9,
    "short": 300,
    "long": 70_000,
    "longlong": 1 << 40,
}
ALL = sorted(METHODS)


def filled(index: int) -> Method:
    kind = METHODS[index]
    method: Method = kind.__new__(kind)
    for name in kind.attributes():
        setattr(method, name, VALUES[kind.amqp_type(name)])
    return method


@pytest.mark.parametrize("index", ALL, ids=name_of)
def test_every_method_survives_the_way_there_and_back(index: int) -> None:
    method = filled(index)
    data = write_method(method, 7)
    found = read_frame(data, 0, FRAME_BYTES_MIN)
    assert found is not None
    frame, end = found
    assert (frame.channel, end) == (7, len(data))
    assert dict(read_method(frame.payload)) == dict(method)


@pytest.mark.parametrize("index", ALL, ids=name_of)
def test_every_method_of_the_library_is_read(index: int) -> None:
    kind = METHODS[index]
    reserved = {"ticket", "out_of_band", "insist", "cluster_id", "capabilities", "channel_id", "known_hosts"}
    names = [name for name in inspect.signature(kind).parameters if name not in reserved and "reserved" not in name]
    strings = {"virtual_host": "/", "exchange_type": "direct", "reply_text": "OK"}
    method = kind(**{name: strings.get(name, VALUES[kind.amqp_type(name)]) for name in names})
    data = reference.marshal(method, 3)
    found = read_frame(data, 0, FRAME_BYTES_MIN)
    assert found is not None
    assert dict(read_method(found[0].payload)) == dict(method)


def test_names_are_those_of_the_specification() -> None:
    assert name_of(commands.Queue.Declare.index) == "queue.declare"
    assert name_of(commands.Basic.RecoverAsync.index) == "basic.recover-async"
    assert name_of(0x00990001) == "153.1"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", ReplyCode.SYNTAX_ERROR),
        (b"\0\x3c\0\xff", ReplyCode.NOT_IMPLEMENTED),
        (b"\0\x99\0\x01", ReplyCode.COMMAND_INVALID),
        (b"\0\x3c\0\x28\0\0\x05abc", ReplyCode.SYNTAX_ERROR),
        (b"\0\x3c\0\x28\0\0\x01\xff\0\0", ReplyCode.SYNTAX_ERROR),
        (b"\0\x14\0\x29more", ReplyCode.SYNTAX_ERROR),
    ],
)
def test_what_is_no_method_is_refused_with_its_code(payload: bytes, code: ReplyCode) -> None:
    with pytest.raises(AmqpError) as refused:
        read_method(payload)
    assert refused.value.code is code


def test_frames_are_bounded_and_end_as_they_should() -> None:
    data = write_method(commands.Basic.Ack(1), 1)
    assert read_frame(data[:-1], 0, FRAME_BYTES_MIN) is None
    with pytest.raises(AmqpError, match="ends with") as refused:
        read_frame(data[:-1] + b"\0", 0, FRAME_BYTES_MIN)
    assert refused.value.code is ReplyCode.FRAME_ERROR
    with pytest.raises(AmqpError, match="agreed on"):
        read_frame(b"\x03\0\x01\x7f\xff\xff\xff", 0, FRAME_BYTES_MIN)
