"""The entries of the session journal: bytes <-> values.

An entry is a record of the stream ``weft-sessions``: its key is the client identifier in UTF-8, or the filter of a
shared subscription; its payload is a msgpack array that begins with the number of its kind. Packet identifiers have two
bytes each, big-endian, as on the wire. The numbers and orders are persisted: add, never change. An unknown kind is
skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from weft.edge_node.sessions.records import Sent
from weft.protocols.fields import U32, Seq
from weft.protocols.mqtt.packets import Subscription

Run = tuple[U32, Seq, U32]
"""(stream, first seq, count) of the records of one read."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Base of all entries."""


class Restarted(Entry, frozen=True, array_like=True, tag=1):
    """The log was opened and the database could not be written: earlier entries apply with these ends."""

    ends: dict[U32, Seq]
    """Stream -> one past the last record that the crash left."""


class Snapshot(Entry, frozen=True, array_like=True, tag=2):
    """The whole session as it is now: it began, its client came back, or its client has gone."""

    record: bytes
    """Session record as ``stored.pack_record`` writes it."""


class Ended(Entry, frozen=True, array_like=True, tag=3):
    """The session has ended."""


class Subscribed(Entry, frozen=True, array_like=True, tag=4):
    """A subscription was added or changed."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int | None
    began: dict[U32, Seq] = {}
    """Stream -> the first seq that is the subscription's; a missing stream counts from seq 0."""

    def subscription(self) -> Subscription:
        """Return the subscription's options."""
        return Subscription(self.filter, self.qos, self.no_local, self.retain_as_published, self.retain_handling)


class Unsubscribed(Entry, frozen=True, array_like=True, tag=5):
    """A subscription was removed."""

    filter: str


class Received(Entry, frozen=True, array_like=True, tag=6):
    """QoS 2 publishes were stored as records of ``runs``, or (without any) belong to no stream."""

    packet_ids: bytes
    runs: tuple[Run, ...]


class Released(Entry, frozen=True, array_like=True, tag=7):
    """PUBREL came for these QoS 2 publishes."""

    packet_ids: bytes


class Sending(Entry, frozen=True, array_like=True, tag=8):
    """QoS 2 deliveries are about to be sent."""

    deliveries: dict[int, Sent]


class Taken(Entry, frozen=True, array_like=True, tag=9):
    """PUBREC came for these QoS 2 deliveries."""

    packet_ids: bytes


class Completed(Entry, frozen=True, array_like=True, tag=10):
    """PUBCOMP came for these QoS 2 deliveries."""

    packet_ids: bytes


class Positions(Entry, frozen=True, array_like=True, tag=11):
    """Positions have moved on."""

    positions: dict[U32, Seq]


class Published(Entry, frozen=True, array_like=True, tag=12):
    """QoS 1 publishes were stored as records of ``runs``, among others of the same read."""

    packet_ids: bytes
    runs: tuple[Run, ...]


class WillPublished(Entry, frozen=True, array_like=True, tag=13):
    """The will was stored as records of ``runs``, or (without any) belongs to no stream or may not be published."""

    runs: tuple[Run, ...]


class Lost(Entry, frozen=True, array_like=True, tag=14):
    """The node started, and the connection was gone: expiry and delay of the will count from here if not before."""

    at: int
    """Nanoseconds since 1970."""


class SharedMoved(Entry, frozen=True, array_like=True, tag=15):
    """A shared subscription has begun or moved on; the record's key is its filter as clients write it."""

    positions: dict[U32, Seq]
    """All of them."""
    owed: tuple[tuple[U32, Seq], ...] | None = None
    """(stream, seq) of messages before the positions that are delivered again; None when they are unchanged."""


class SharedEnded(Entry, frozen=True, array_like=True, tag=16):
    """The shared subscription of this filter has no members any more."""


AnyEntry = (
    Restarted | Snapshot | Ended | Subscribed | Unsubscribed | Received | Released | Sending | Taken | Completed
    | Positions | Published | WillPublished | Lost | SharedMoved | SharedEnded
)  # fmt: skip

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AnyEntry)
_KINDS = range(1, 17)


class JournalRecord(NamedTuple):
    """An entry and its owner."""

    key: str
    """Client identifier, or filter of a shared subscription; empty for ``Restarted``."""
    entry: Entry


def encode_entry(entry: Entry) -> bytes:
    """Return the payload of the entry's record."""
    return _ENCODER.encode(entry)


def decode_entry(payload: bytes) -> Entry | None:
    """Return the entry of a record's payload; None for a kind of a later release.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: no release of Weft wrote this.
    """
    try:
        entry: Entry = _DECODER.decode(payload)
        return entry
    except msgspec.ValidationError:
        kind = msgspec.msgpack.decode(payload)
        if isinstance(kind, list) and kind and isinstance(kind[0], int) and kind[0] not in _KINDS:
            return None
        raise


def pack_ids(packet_ids: Iterable[int]) -> bytes:
    """Return packet identifiers in two bytes each."""
    return b"".join(packet_id.to_bytes(2, "big") for packet_id in packet_ids)


def unpack_ids(data: bytes) -> Sequence[int]:
    """Return the packet identifiers that ``pack_ids`` packed."""
    return [data[at] << 8 | data[at + 1] for at in range(0, len(data) - 1, 2)]


def ids_of_acks(acks: bytes) -> bytes:
    """Return the packet identifiers of PUBACKs that have four bytes each."""
    ids = bytearray(len(acks) // 2)
    ids[0::2], ids[1::2] = acks[2::4], acks[3::4]
    return bytes(ids)
