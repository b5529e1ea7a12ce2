"""A device on a bare socket that knows every message it sent and, in order, which of them were acknowledged.

MQTT 3.1.1, QoS 1, up to ``WINDOW`` messages on their way. Most go to ``load/<name>/count``; every so many-th is an
alarm, and every so many-th a retained state.
"""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

from examples.demo.fabric import free_port
from tests.storage.segment_log.helpers import open_log
from tests.support.outcomes import outcome
from tests.support.processes import EdgeProcess
from tests.support.waiting import PATIENCE_S
from weft.edge_node.streams import UNROUTED_STREAM
from weft.protocols.batch import records
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log import LogSettings, SegmentLog

WINDOW = 200
ALARM_EVERY, STATE_EVERY = 40, 60
KEPT_MAX = 100_000
_IDS = 65_535
_ACCEPTED = b"\x20\x02\0\0"
"""CONNACK without a session (MQTT 3.1.1 section 3.2)."""


class Sent(NamedTuple):
    """A message."""

    topic: str
    payload: bytes
    retain: bool


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _packet(head: int, body: bytes) -> bytes:
    length, digits = len(body), bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (128 if length else 0))
        if not length:
            return bytes([head]) + bytes(digits) + body


def puback_ids(stream: bytes) -> list[int]:
    """The packet ids in whole PUBACKs, each of 4 bytes (MQTT 3.1.1 section 3.4)."""
    acks = stream[: len(stream) // 4 * 4]
    assert acks[0::4].count(0x40) == len(acks) // 4, "the server sent something else than acknowledgements"
    return [high << 8 | low for high, low in zip(acks[2::4], acks[3::4], strict=True)]


class Messages(Sequence[Sent]):
    """A device's messages, by number. Old ones are made again on request: those of an hour would fill the memory."""

    def __init__(self, name: str, payload_bytes: int, random_bytes: int) -> None:
        self.many = 0
        """How many were sent."""
        self._name, self._payload_bytes, self._random_bytes = name, payload_bytes, random_bytes
        self._message = lru_cache(KEPT_MAX)(self._make)

    def __len__(self) -> int:
        return self.many

    @overload
    def __getitem__(self, which: int) -> Sent: ...
    @overload
    def __getitem__(self, which: slice) -> list[Sent]: ...
    def __getitem__(self, which: int | slice) -> Sent | list[Sent]:
        if isinstance(which, slice):
            return [self._message(number) for number in range(self.many)[which]]
        return self._message(range(self.many)[which])

    def _make(self, number: int) -> Sent:
        name, chance = self._name, random.Random(f"{self._name}:{number}")
        if number % ALARM_EVERY == 1:
            return Sent(f"alarm/{name}", b"%d" % number, False)
        if number % STATE_EVERY == 2:
            return Sent(f"state/{name}", b"%d" % number, True)
        reading = {"n": number, "device": name, "value": round(chance.gauss(20, 3), 3)}
        if self._random_bytes:
            reading["noise"] = chance.randbytes(self._random_bytes).hex()
        return Sent(f"load/{name}/count", json.dumps(reading).encode().ljust(self._payload_bytes), False)


class Device(threading.Thread):
    """Publishes until told to stop, or until the server is gone."""

    def __init__(
        self,
        name: str,
        port: int,
        *,
        rate: float = 0,
        payload_bytes: int = 60,
        random_bytes: int = 0,
        again_s: float | None = None,
    ) -> None:
        """Connect.

        Args:
            rate: messages a second; 0 as fast as it can.
            payload_bytes: padded to so many.
            random_bytes: of each message, in hexadecimal digits: what does not compress.
            again_s: connect again so long after a connection was lost, and send again what was not acknowledged.
        """
        super().__init__(name=name, daemon=True)
        self.sent = Messages(name, payload_bytes, random_bytes)
        self.acked = 0
        """Messages acknowledged: the first so many of ``sent``."""
        self.lost_connections = 0
        self.quit = threading.Event()
        self._server, self._rate, self._again_s = port, rate, again_s
        self._next = 0
        self._connect()
        self.port: int = self._socket.getsockname()[1]

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._server), timeout=PATIENCE_S)
        self._socket.sendall(_packet(0x10, _text("MQTT") + bytes([4, 2]) + struct.pack(">H", 600) + _text(self.name)))
        answer = self._socket.recv(4, socket.MSG_WAITALL)
        if answer != _ACCEPTED:
            raise ConnectionError(f"the server answered {answer!r}")
        self._received, self._next = b"", self.acked

    def run(self) -> None:
        started = time.monotonic()
        while True:
            try:
                self._publish(started)
            except OSError:
                self.lost_connections += 1
            self._socket.close()
            while True:
                if self._again_s is None or self.quit.wait(self._again_s):
                    return
                try:
                    self._connect()
                    break
                except OSError:
                    continue

    def _publish(self, started: float) -> None:
        self._socket.setblocking(False)
        unsent = b""
        while not self.quit.is_set():
            due = int((time.monotonic() - started) * self._rate) if self._rate else self._next + WINDOW
            while self._next < min(due, self.acked + WINDOW):
                unsent += self._encode(self._next)
                self._next += 1
            readable, writable, _ = select.select([self._socket], [self._socket] if unsent else [], [], 0.02)
            if writable:
                unsent = unsent[self._socket.send(unsent) :]
            if readable:
                self._read()
        while self.acked < self._next and select.select([self._socket], [], [], 2)[0]:
            self._read()

    def _read(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._received += data
        whole = len(self._received) // 4 * 4
        for identifier in puback_ids(self._received[:whole]):
            assert identifier == self.acked % _IDS + 1, "acknowledgements out of order [MQTT-4.6.0-2]"
            self.acked += 1
        self._received = self._received[whole:]

    def _encode(self, number: int) -> bytes:
        self.sent.many = max(self.sent.many, number + 1)
        message = self.sent[number]
        body = _text(message.topic) + struct.pack(">H", number % _IDS + 1) + message.payload
        return _packet(0x32 | message.retain, body)


# --- An edge node as a real process, and what clients see of it


STREAM = "load"

EDGE_YAML = """\
node: cut
data_dir: {tree}
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: {budget}, segment: {segment}}}
streams:
  load: {{{stream}}}
"""


class LoadedNode(EdgeProcess):
    """A node with its data in ``tree``, in whose one stream devices count."""

    def __init__(
        self, folder: Path, tree: Path, *, budget: str = "64MiB", segment: str = "1MiB", more: str = "", links: str = ""
    ) -> None:
        """Write the configuration.

        Args:
            more: further settings of the stream, such as ``when_full: drop_oldest``.
            links: a section to append.
        """
        self.tree = tree
        self.mqtt = free_port()
        stream = 'from: "load/{device}/count"' + (f", {more}" if more else "")
        text = EDGE_YAML.format(
            tree=tree, mqtt=self.mqtt, http=free_port(), budget=budget, segment=segment, stream=stream
        )
        super().__init__(folder, text + links, folder / "node.log")

    def status(self) -> Any:
        """Its status document."""
        return self.node.json("status")


# --- What a node's log must hold, given what its devices sent and the answers that they got


SETTINGS = LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20, tail_bytes=0)
"""Of the nodes under test."""


class Held(NamedTuple):
    """The stream as its log has it."""

    payloads: Counter[bytes]
    numbers: RangeSet
    gaps: dict[GapReason, RangeSet]
    next_seq: int


def read_stream(log: SegmentLog) -> Held:
    """Everything that is in the log of ``nodes.STREAM``."""
    payloads: Counter[bytes] = Counter()
    gaps: dict[GapReason, RangeSet] = {}
    number = log.streams().get(STREAM)
    if number is None:
        return Held(payloads, RangeSet(), gaps, 0)
    for gap in log.gaps(number):
        gaps.setdefault(GapReason(gap.reason), RangeSet()).add(gap.first, gap.end)
    seq = 0
    while batches := log.read(number, seq, 1 << 22):
        for data in batches:
            for record in records(data):
                assert record.seq >= seq, "a record is read twice"
                payloads[record.payload] += 1
                seq = record.seq + 1
    return Held(payloads, log.ranges(number), gaps, log.durable_end(number))


def open_after(disk: FileSystem, folder: Path) -> SegmentLog:
    """The log of a node that is gone; nothing in it may be damaged."""
    log = open_log(disk, SETTINGS, directory=str(folder))
    assert not log.recovery.damaged
    assert not log.recovery.gaps
    return log


def of_stream(messages: Iterable[Sent]) -> Iterator[bytes]:
    """The payloads that the stream should have."""
    return (message.payload for message in messages if message.topic.startswith(f"{STREAM}/"))


@outcome()
def check_all_there(held: Held, devices: list[Device], acked: dict[str, int], *, copies_max: int = 1) -> None:
    """Every acknowledged message is there, unaltered; nothing that no device sent; nothing was given up.

    Args:
        acked: device -> how many of its messages were acknowledged.
        copies_max: more than one where a device sends again what was not acknowledged.
    """
    assert not held.gaps
    found = held.payloads.copy()
    for device in devices:
        copies = [found.pop(payload, 0) for payload in of_stream(device.sent)]
        reported = sum(1 for _ in of_stream(islice(device.sent, acked[device.name])))
        assert 0 not in copies[:reported], f"acknowledged messages of {device.name} are missing"
        assert max(copies, default=0) <= copies_max, f"a message of {device.name} is there more than once"
        there = [count > 0 for count in copies]
        assert there == sorted(there, reverse=True), f"{device.name}: a message is there and one before it is not"
    assert not found, f"messages that nobody sent: {list(found)[:3]}"


@outcome()
def check_unrouted_there(log: SegmentLog, devices: list[Device], acked: dict[str, int]) -> None:
    """Every acknowledged message that no stream matches is once in the stream for those, and nothing else is."""
    found: Counter[tuple[bytes, bytes]] = Counter()
    number, seq = log.streams().get(UNROUTED_STREAM), 0
    while number is not None and (batches := log.read(number, seq, 1 << 22)):
        for data in batches:
            for record in records(data):
                found[record.key, record.payload] += 1
                seq = record.seq + 1
    for device in devices:
        strays = [
            ((message.topic.encode(), message.payload), at < acked[device.name])
            for at, message in enumerate(device.sent)
            if not message.topic.startswith(f"{STREAM}/")
        ]
        for stray, is_acknowledged in strays:
            copies = found.pop(stray, 0)
            assert copies == 1 or (not copies and not is_acknowledged), f"{stray}: {copies} times in the log"
    assert not found, f"messages that nobody sent: {list(found)[:3]}"


@outcome()
def check_rest_is_noticed(held: Held, device: Device) -> None:
    """Of one device alone: what is not there any more is the oldest, and notices say so, number for number."""
    given_up = held.gaps.get(GapReason.BUDGET, RangeSet())
    reported = given_up.copy()
    reported.update(held.numbers)
    assert reported.covers(0, held.next_seq), f"numbers without record or notice: {reported.missing(0, held.next_seq)}"
    there = [payload in held.payloads for payload in of_stream(islice(device.sent, device.acked))]
    first = there.index(True)
    assert all(there[first:]), "acknowledged messages are missing from the middle"
    assert first <= sum(end - start for start, end in given_up), "more is missing than the notices say"
    assert first > 0, "nothing was given up: the disk was never full"
    assert not set(held.payloads).difference(of_stream(device.sent)), "messages that nobody sent"
