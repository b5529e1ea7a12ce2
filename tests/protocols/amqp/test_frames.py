"""Tests of ``protocols/amqp/frames.py``."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame as reference

from weft.edge_node.ingest.record import WRITE_COST, Destination, Gathering, Route
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import FRAME_BYTES_MIN, AmqpError, Form, ReplyCode, read_frame, scan
from weft.protocols.amqp.methods import METHODS, Method, commands, name_of, read_method, write_method
from weft.protocols.batch import HeaderPairs

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


# --- What the hot path takes is what the frames say, and it leaves everything else where it is


PLAIN, TYPED = b"\0\0", b"\x80\x00\x04text"
HEADERS: dict[bytes, HeaderPairs] = {PLAIN: (), TYPED: (("weft.content-type", "text"),)}


class Channel:
    def __init__(self) -> None:
        self.counted: list[int] = []

    def published(self, count: int) -> None:
        self.counted.append(count)


class Known(dict[tuple[bytes, bytes], Form]):
    form: Form | None = None

    def find(self, method: bytes, properties: bytes) -> Form | None:
        return self.get((method, properties))


def method(channel: int, key: str) -> bytes:
    return write_method(commands.Basic.Publish(0, "amq.topic", key), channel)


def message(channel: int, key: str, body: bytes, properties: bytes = PLAIN) -> bytes:
    return method(channel, key) + write_content(channel, properties, body, FRAME_BYTES_MIN)


@pytest.fixture
def channels() -> dict[int, Channel]:
    return {1: Channel(), 2: Channel()}


def known(channels: dict[int, Channel], *, live: int = 0) -> Known:
    found = Known()
    for number, channel in channels.items():
        for key in ("a", "a.b"):
            route = Route(Destination((1,), False, False), live=live, marked=False)
            frame, topic = method(number, key), key.replace(".", "/").encode()
            for properties, headers in HEADERS.items():
                form = Form(frame, number.to_bytes(2, "big"), properties, topic, headers, channel, route)
                found[frame, properties] = form
    return found


def taken(gathered: Gathering) -> list[tuple[bytes, bytes, HeaderPairs]]:
    return [
        (key, payload, run.headers.get(at, ()))
        for run in gathered.groups.values()
        for at, (key, payload) in enumerate(zip(run.keys, run.payloads, strict=True))
    ]


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([1, 2]),
        st.sampled_from(["a", "a.b"]),
        st.binary(min_size=1, max_size=12),
        st.sampled_from([PLAIN, TYPED]),
    ),
    max_size=12,
)


@given(MESSAGES, st.data())
def test_runs_are_taken_up_to_where_they_are_whole(
    messages: list[tuple[int, str, bytes, bytes]], data: st.DataObject
) -> None:
    channels = {1: Channel(), 2: Channel()}
    forms = known(channels)
    stream, ends = b"", [0]
    for each in messages:
        stream += message(*each)
        ends.append(len(stream))
    cut = data.draw(st.integers(0, len(stream)))
    gathered = Gathering()
    at = scan(stream[:cut], 0, forms, gathered, len(stream))
    whole = max(index for index, end in enumerate(ends) if end <= cut)
    assert at == ends[whole]
    expected = [(key.replace(".", "/").encode(), body, HEADERS[kind]) for _, key, body, kind in messages[:whole]]
    assert sorted(taken(gathered)) == sorted(expected)
    for number, channel in channels.items():
        assert sum(channel.counted) == sum(1 for each in messages[:whole] if each[0] == number)
    sources = [source for run in gathered.groups.values() for source in run.sources]
    assert len(sources) == whole


def test_order_is_kept_within_a_destination(channels: dict[int, Channel]) -> None:
    forms = known({1: channels[1]})
    first = next(iter(forms.values()))
    for form in forms.values():
        form.route = first.route
    bodies = [str(n).encode() for n in range(50)]
    stream = b"".join(message(1, random.Random(n).choice(["a", "a.b"]), body) for n, body in enumerate(bodies))
    gathered = Gathering()
    assert scan(stream, 0, forms, gathered, len(stream)) == len(stream)
    assert [payload for _, payload, _ in taken(gathered)] == bodies


@pytest.mark.parametrize("body", [b"x", bytes(300)])
def test_messages_that_are_alike_are_all_taken(channels: dict[int, Channel], body: bytes) -> None:
    stream, gathered = message(1, "a", body, TYPED) * 20, Gathering()
    assert scan(stream, 0, known(channels), gathered, len(stream)) == len(stream)
    assert taken(gathered) == [(b"a", body, HEADERS[TYPED])] * 20


def test_a_message_without_a_body_is_left(channels: dict[int, Channel]) -> None:
    good, empty, gathered = message(1, "a", b"1"), message(1, "a", b""), Gathering()
    assert scan(good + empty + good, 0, known(channels), gathered, 1 << 20) == len(good)


def test_the_form_of_the_last_message_goes_with_those_that_are_forgotten(channels: dict[int, Channel]) -> None:
    forms, gathered = known(channels), Gathering()
    assert scan(message(1, "a", b"1"), 0, forms, gathered, 1 << 20)
    assert forms.form is not None
    forms.form = None
    forms.clear()
    assert scan(message(1, "a", b"1"), 0, forms, gathered, 1 << 20) == 0


def test_a_channel_counts_what_came_in_one_read_at_once(channels: dict[int, Channel]) -> None:
    stream = b"".join(message(1, key, b"1") for key in ("a", "a.b") * 5) + message(2, "a", b"1")
    assert scan(stream, 0, known(channels), Gathering(), len(stream)) == len(stream)
    assert (channels[1].counted, channels[2].counted) == ([10], [1])


def test_records_for_subscribers_are_noted(channels: dict[int, Channel]) -> None:
    gathered = Gathering()
    stream = message(1, "a", b"1") * 3
    assert scan(stream, 0, known(channels, live=1), gathered, len(stream)) == len(stream)
    assert [index for _, index in gathered.live] == [0, 1, 2]


def test_a_long_read_is_left_after_its_share(channels: dict[int, Channel]) -> None:
    one = message(1, "a", b"12345678")
    gathered = Gathering()
    at = scan(one * 100, 0, known(channels), gathered, 10 * len(one))
    assert at == 11 * len(one)


@pytest.mark.parametrize(("size", "key"), [(1, "a"), (300, "a"), (1, "a.b")])
@pytest.mark.parametrize("room", [-1, 0, 9, 10, 95])
def test_messages_that_cost_more_are_left(channels: dict[int, Channel], size: int, key: str, room: int) -> None:
    """As many as have room are taken at most, and one at least."""
    stream, at = b"".join(message(1, key, bytes([n]) * size) for n in range(100)), 0
    forms, cost = known(channels, live=10), 10 + WRITE_COST
    all_of_them = []
    while at < len(stream):
        gathered = Gathering()
        at = scan(stream, at, forms, gathered, len(stream), room * cost // 10)
        assert gathered.cost <= max(cost, room * cost // 10)
        all_of_them += [payload for _, payload, _ in taken(gathered)]
    assert all_of_them == [bytes([n]) * size for n in range(100)]


def damaged() -> dict[str, bytes]:
    whole = message(1, "a", b"body", TYPED)
    at = len(method(1, "a"))
    body_at = whole.index(b"\x03\0\x01")

    def changed(offset: int, value: int) -> bytes:
        return whole[:offset] + bytes((value,)) + whole[offset + 1 :]

    return {
        "no method": changed(0, 8),
        "another exchange": changed(20, 0x41),
        "no header": changed(at, 3),
        "header on another channel": changed(at + 2, 2),
        "header of another class": changed(at + 8, 61),
        "header with a weight": changed(at + 10, 1),
        "header without end": changed(body_at - 1, 0),
        "properties not known": changed(body_at - 2, 0x41),
        "another body size": changed(at + 18, 5),
        "no body": changed(body_at, 1),
        "body on another channel": changed(body_at + 2, 2),
        "body of another size": changed(body_at + 6, 3),
        "body without end": changed(len(whole) - 1, 0),
        "header longer than all": changed(at + 3, 0x7F),
    }


@pytest.mark.parametrize("fault", damaged())
def test_what_is_not_plain_is_left(channels: dict[int, Channel], fault: str) -> None:
    good, bad = message(1, "a", b"good"), damaged()[fault]
    gathered = Gathering()
    assert scan(good + bad + good, 0, known(channels), gathered, 1 << 20) == len(good)
    assert [payload for _, payload, _ in taken(gathered)] == [b"good"]


@given(st.binary(max_size=120))
def test_noise_is_left(noise: bytes) -> None:
    gathered = Gathering()
    assert scan(noise, 0, known({1: Channel()}), gathered, 1 << 20) == 0


def test_long_content_comes_in_frames_that_the_peer_takes() -> None:
    body = bytes(range(256)) * 40
    data, pieces, at = write_content(5, PLAIN, body, FRAME_BYTES_MIN), [], 0
    while at < len(data):
        found = read_frame(data, at, FRAME_BYTES_MIN)
        assert found is not None
        frame, at = found
        pieces.append(frame)
    assert [frame.kind for frame in pieces] == [2, 3, 3, 3]
    assert b"".join(frame.payload for frame in pieces[1:]) == body
