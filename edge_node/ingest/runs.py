"""Runs of gathered records: the streams that take them, their headers, and the order of their delivery."""

from __future__ import annotations

from weft.edge_node.ingest.record import Records
from weft.edge_node.ingest.routes import Destination
from weft.edge_node.subscriptions.message import NOWHERE, PUBLISHER
from weft.protocols.batch import Flag, HeaderPairs

_COPIED = int(Flag.COPIED_FOR_SESSIONS)


def ascending(live: list[tuple[Records, int]], streams: dict[Records, int]) -> list[tuple[Records, int]]:
    """Return the records in order of receipt, except that those of each stream come in order of seq.

    Runs of two destinations may be in one stream, one behind the other although their records came by turns. A session
    that stops taking live messages reads on from a seq: what has a lower one must have been delivered before. Records
    of one topic are in one run, so they keep their order [MQTT-4.6.0-6].
    """
    of_stream: dict[int, list[tuple[Records, int]]] = {}
    for each in live:
        of_stream.setdefault(streams[each[0]], []).append(each)
    for stream, found in of_stream.items():
        if stream != NOWHERE:
            found.sort(key=_seq)
    following = {stream: iter(found) for stream, found in of_stream.items()}
    return [next(following[streams[records]]) for records, _ in live]


def _seq(of: tuple[Records, int]) -> int:
    seq = of[0].seqs[of[1]] if of[0].seqs else None
    return -1 if seq is None else seq  # refused: it is not delivered


def headers_of(records: Records) -> dict[int, HeaderPairs] | None:
    """Return index in the records -> headers, of those that have any."""
    if not records.marked:
        return records.headers or None
    headers = records.headers.copy()
    for index in records.marked:
        publisher = records.sources[index].publisher
        if publisher is not None:
            headers[index] = (*headers.get(index, ()), (PUBLISHER, publisher))
    return headers


def streams_of(destination: Destination, records: Records) -> tuple[int, ...]:
    """Return the streams that take the records; the one from which sessions read them last. No session gets messages at
    QoS 0 later: it needs no copy of them."""
    streams = destination.streams
    if len(streams) > 1:
        streams = (*streams[1:], streams[0])
    return streams[:-1] if destination.kept_for_sessions and _all_qos0(records) else streams


def flags_in(stream: int, records: Records) -> dict[int, int] | None:
    """Return index in the records -> flags for one of their streams, of those that have any.

    A reader that falls behind reads `unrouted` and the copies for sessions. Which record has a copy must be in the log:
    who is subscribed may have changed by the time of reading. No session reads messages at QoS 0.
    """
    flags = records.flags
    if stream != records.copied_in:
        return flags or None
    every = ((index, flags.get(index, 0)) for index in range(len(records.keys)))
    return {index: bits if bits & Flag.PUBLISHED_QOS0 else bits | _COPIED for index, bits in every}


def _all_qos0(records: Records) -> bool:
    flags = records.flags
    return len(flags) >= len(records.keys) and all(bits & Flag.PUBLISHED_QOS0 for bits in flags.values())
