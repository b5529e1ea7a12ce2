"""A user with many subscribers publishes as much as can be: the node serves others, and delivers it all the same."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.flood import fan_out_flood
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from tests.support.slices import SLICE
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Publish

pytestmark = pytest.mark.processes
UNDISTURBED_S, ATTACK_S = 0.7, 2.5
FACTOR = 10
LEAST_S = 0.04
"""As in ``test_http``."""
LOGIN = base64.b64encode(b"mallory:mallory")
SUBSCRIBERS = 400
FLEET = 150


def request(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic %b\r\nContent-Length: %d\r\n%b\r\n%b" % (
        path,
        LOGIN,
        len(body),
        more,
        body,
    )


def publishes() -> bytes:
    return encode(Publish(b"public/x", b"", 0), 4) * 10_000


def acknowledged_publishes() -> bytes:
    return b"".join(encode(Publish(b"public/x", b"", 1, packet_id=number), 4) for number in range(1, 10_000))


def one_publish() -> bytes:
    return encode(Publish(b"public/x", b"", 1, packet_id=1), 4)


def points() -> bytes:
    return request(b"/api/v2/write?bucket=public&precision=s", b"x a=1 1700000000\n" * 9_000)


def posts(count: int, messages: int, key: bytes = b"") -> bytes:
    body = b"[" + b",".join([b"1"] * messages) + b"]"
    json = b"Content-Type: application/json\r\n"
    keys = (b"Idempotency-Key: %b-%d\r\n" % (key, number) if key else b"" for number in range(count))
    return b"".join(request(b"/v1/topics/public/x", body, json + each) for each in keys)


def pipelined() -> bytes:
    return posts(600, 16)


def pipelined_once() -> bytes:
    return posts(600, 64, b"pipelined")


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[GuardedEdge]:
    users = SUBSCRIBERS + FLEET + 50
    limits = f"connections: {2 * users}, user_share: 50%, half_open: {2 * users}"
    node = GuardedEdge(tmp_path, limits)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.mark.search
@pytest.mark.parametrize(
    ("made", "qos"),
    SLICE.some(
        [
            (publishes, 0),
            (acknowledged_publishes, 1),
            (one_publish, 0),
            (points, 0),
            (pipelined, 0),
            (pipelined_once, 0),
        ],
        ci=1,
    ),
)
def test_others_are_served_while_much_goes_to_many(
    edge: GuardedEdge, tmp_path: Path, made: Callable[[], bytes], qos: int
) -> None:
    (tmp_path / "sent").write_bytes(made())
    port = edge.mqtt_port if made in (publishes, acknowledged_publishes, one_publish) else edge.posts_port
    connections = FLEET if made is one_publish else 1
    with GoodClient(edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        received = fan_out_flood(port, tmp_path / "sent", ATTACK_S, edge.mqtt_port, SUBSCRIBERS, qos, connections)
        attacked = good.take()
    assert received > SUBSCRIBERS * 1000
    at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.p99, undisturbed, attacked)
