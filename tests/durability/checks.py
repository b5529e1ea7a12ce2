"""What a node's log must hold, given what its devices sent and the answers that they got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tests.durability.devices import Device, Sent
from tests.durability.nodes import STREAM
from tests.storage.segment_log.helpers import open_log
from tests.support.outcomes import outcome
from weft.edge_node.streams import UNROUTED_STREAM
from weft.protocols.batch import records
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log import LogSettings, SegmentLog

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
