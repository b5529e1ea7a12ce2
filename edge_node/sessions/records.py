"""Records of the state that survives a restart, their formats in the journal and the database, and the bounds on
sessions and their state. Streams are named by their number in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from weft.bounds import Bound, Owner, Quota, Rates, Refusals
from weft.config.limits import EdgeLimits
from weft.config.models import EdgeConfig
from weft.config.streams import State
from weft.edge_node.check.streams import TOPICS_LOG_BYTES, read_reserve_bytes, topics_log_bytes
from weft.edge_node.subscriptions.limits import MatchCost
from weft.protocols.mqtt.packets import NO_PROPERTIES, Properties, Subscription, Will
from weft.protocols.ranges import U32, Seq

# Records of the state that survives a restart of the node. Streams are named by their number in the log.

NEVER_EXPIRES = 0xFFFFFFFF
"""Session expiry interval, in seconds, of a session that never expires (MQTT 5.0 section 3.1.2.11.2)."""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """A delivery that was sent and not completed. The message itself is in the log."""

    stream: int
    seq: int
    qos: int
    released: bool = False
    """QoS 2: PUBREC came, so PUBREL is sent again."""


class SessionRecord(msgspec.Struct):
    """State of a persistent session that survives a restart."""

    client_id: str
    version: int
    """Protocol level of the client's last CONNECT: 3, 4 or 5."""
    expiry_interval: int
    """Seconds after the client has gone, or ``NEVER_EXPIRES``. 0: the session ends with its connection, and is
    kept for its will alone."""
    username: str | None = None
    disconnected_at: int | None = None
    """None while connected: then the expiry and the delay of the will count from ``lost_at``."""
    stopped: bool = False
    """The connection ended because the node stopped: the delay of the will counts from ``lost_at``."""
    lost_at: int | None = None
    """Time at which a node started without the connection."""
    subscriptions: dict[str, Subscription] = {}
    """Filter as the client wrote it -> its options (``Subscription.filter`` is the same filter)."""
    identifiers: dict[str, int] = {}
    """Filter -> subscription identifier, for filters that have one."""
    began: dict[str, dict[int, int]] = {}
    """Filter -> stream -> seq, where that is beyond the stream's position: the messages before it are older than the
    subscription, and not for it."""
    positions: dict[int, int] = {}
    """Stream -> seq: every message before it is done or in ``inflight``; later ones are sent from the log, except those
    in ``inflight`` and ``done``. A missing stream counts from seq 0."""
    inflight: dict[int, Sent] = {}
    """Packet identifier -> delivery, in the order of sending."""
    done: set[tuple[int, int]] = set()
    """(stream, seq) of deliveries at or after their stream's position that the client has completed."""
    received: set[int] = set()
    """Packet identifiers of QoS 2 publishes stored and not yet released by PUBREL."""
    will: Will | None = None
    """The will, until it is published or taken back by DISCONNECT; due ``will_delay_interval`` after
    ``disconnected_at``."""
    address: str | None = None
    """Address of the client that began it, where it has no user name: the owner for costs. None: this machine."""


class SharedRecord(msgspec.Struct):
    """State of a shared subscription that survives a restart; its members are in their sessions' records."""

    name: str
    """The filter as clients write it, ``$share/`` included."""
    positions: dict[int, int] = {}
    """Stream -> seq: every message before it was delivered to a member, or is in ``owed``."""
    owed: list[tuple[int, int]] = []
    """(stream, seq) before their stream's position of messages that no member keeps: they are delivered again."""


# Bounds on sessions, of all clients together and of one owner.


class SessionShares:
    """Bounds on all sessions together and on those of one owner, its user or else its address.

    Where a total is full, the owner that has most makes room first, by absent sessions of its own.
    """

    def __init__(self, limits: EdgeLimits, refusals: Refusals) -> None:
        """Start with nothing taken."""

        def quota(name: str, total: int, what: str) -> Quota:
            return Quota.of(f"limits.{name}", total, limits.user_share, what)

        self.connections = Bound(quota("connections", limits.connections, "connections"), refusals)
        self.sessions = Bound(quota("sessions", limits.sessions, "connected clients"), refusals)
        self.filters = Bound(quota("subscriptions_total", limits.subscriptions_total, "subscriptions"), refusals)
        self.filter_bytes = Bound(quota("filters_total_size", limits.filters_total_bytes, "filters"), refusals)
        self.match_cost = MatchCost(quota("match_cost", limits.match_cost, "filters"), refusals)
        """Cost of a message because of filters."""
        self.will_bytes = Bound(quota("wills", limits.wills_bytes, "wills"), refusals)


# Bounds on the state that the node keeps for MQTT clients across restarts.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """Settings of the state: two sections of a configuration, and what depends on others. ``StateCounters`` has a
    counter of the use or the refusals of each bound."""

    limits: EdgeLimits = field(default_factory=EdgeLimits)
    state: State = field(default_factory=State)
    reserve_bytes: int = read_reserve_bytes(EdgeLimits())
    """Room in the log that is required before a read of a persistent session is stored: enough for a read, and a packet
    that the read before it cut in two."""
    topics_log_bytes: int = TOPICS_LOG_BYTES
    """Bytes that the log may grow by before unrouted messages, kept for sessions alone, may be deleted from it
    although a session has not had them."""
    suppressed: frozenset[int] = field(default_factory=frozenset)
    """Streams with ``resent: suppress``."""

    @classmethod
    def of(cls, config: EdgeConfig, suppressed: frozenset[int]) -> StateSettings:
        """Return the bounds that a configuration sets.

        Args:
            suppressed: numbers of the streams with ``resent: suppress``.
        """
        return cls(
            limits=config.limits,
            state=config.state,
            reserve_bytes=read_reserve_bytes(config.limits),
            topics_log_bytes=topics_log_bytes(config),
            suppressed=suppressed,
        )


@dataclass(slots=True)
class StateCounters:
    """Totals since the start, except for values described as "now". Changed by the event loop's thread only."""

    retained: int = 0
    """Retained messages now."""
    retained_bytes: int = 0
    """Memory that they take now, estimated."""
    retained_refused: int = 0
    """Retained messages that a limit forbade."""
    retained_evicted: int = 0
    """Retained messages of an owner that had most, forgotten for those of others."""
    retained_expired: int = 0
    journal_bytes: int = 0
    """Journal not yet in the database, now."""
    journal_refused: int = 0
    """Changes refused because the journal was full."""
    sessions_saved: int = 0
    """Session records written to the database."""
    resent_recognised: int = 0
    resent_remembered: int = 0
    """Publishes remembered to recognise repeats, now."""
    resent_forgotten: int = 0
    """Publishes forgotten because of the limit for all sessions."""
    backlog_pages: int = 0
    backlog_disk_reads: int = 0
    backlog_waits: int = 0
    """Reads that waited because ``backlog_reads`` others were under way."""
    backlog_buffer_bytes: int = 0
    """Decoded batches in memory now."""
    backlog_evicted: int = 0
    """Decoded batches dropped because ``backlog_buffer_bytes`` was reached."""
    backlog_lost: int = 0
    """Records that sessions missed because the log no longer has them."""
    topics_abandoned: int = 0
    """Unrouted messages released although a session had not had them."""
    database_failures: int = 0
    """Transactions that failed: the disk was full, or failed."""


# Rates at which owners may change their sessions: a change is a record of the journal, and work to fold it.

BURST_S = 4.0
"""Seconds of changes that an owner may make at once, such as when all its devices come back."""


class ChangeRates:
    """Bytes of the session journal that each owner has caused lately. Owner's thread only.

    Changes are charged after the fact, so an owner may be in debt. Until it is out of that, its clients wait.

    Args:
        noted: bytes written to the journal since the start.
        bytes_per_s: long-term rate of one owner.
        refusals: counts refused owners.
    """

    def __init__(self, noted: Callable[[], int], bytes_per_s: int, refusals: Refusals) -> None:
        self._noted = noted
        self.rates: Rates[Owner] = Rates(bytes_per_s, bytes_per_s * BURST_S, refusals.clock)
        """Seconds until an owner may change its sessions again: ``debt_s``."""
        self._refusals = refusals

    def charge(self, owner: Owner, change: Callable[[], None]) -> None:
        """Make a change, and charge its journal bytes to the owner."""
        before = self._noted()
        try:
            change()
        finally:
            more = self._noted() - before
            if more:
                self.rates.charge(owner, more)

    def refuse(self, owner: Owner) -> None:
        """Count the refusal of an owner's client, which must retry later."""
        advice = "its sessions change too often; look for clients that come and go, or raise state.journal_per_user"
        self._refusals.note("state.journal_per_user", owner, advice)


# Format of properties and session records in the database and the journal: names and values, without empty ones.

_ENCODER = msgspec.json.Encoder()


def pack_properties(properties: Properties) -> bytes | None:
    """Return the properties that are set as JSON; None when there are none."""
    if properties is NO_PROPERTIES or properties == NO_PROPERTIES:
        return None
    return _ENCODER.encode(_without_defaults(msgspec.to_builtins(properties)))


def unpack_properties(data: bytes | None) -> Properties:
    """Return the properties that ``pack_properties`` wrote. Names that a later release may have added are skipped."""
    return NO_PROPERTIES if data is None else msgspec.json.decode(data, type=Properties)


def pack_record(record: SessionRecord | SharedRecord) -> bytes:
    """Return a record as JSON."""
    return _ENCODER.encode(_without_defaults(msgspec.to_builtins(record, str_keys=True)))


_RECORDS = msgspec.json.Decoder(SessionRecord)
_SHARED_RECORDS = msgspec.json.Decoder(SharedRecord)


def unpack_record(data: bytes | str) -> SessionRecord:
    """Return the session record that ``pack_record`` wrote.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: the data has another form.
    """
    return _RECORDS.decode(data)


def unpack_shared(data: bytes | str) -> SharedRecord:
    """Return the record of a shared subscription that ``pack_record`` wrote. Raises as ``unpack_record`` does."""
    return _SHARED_RECORDS.decode(data)


def _without_defaults(value: Any) -> Any:
    """Return a value without fields that are None, False or empty: that is their default."""
    if isinstance(value, dict):
        pairs = ((name, _without_defaults(each)) for name, each in value.items())
        return {
            name: each for name, each in pairs if each is not None and each is not False and each not in ({}, [], ())
        }
    return value


# The entries of the session journal: bytes <-> values.
#
# An entry is a record of the stream ``weft-sessions``: its key is the client identifier in UTF-8, or the filter of a
# shared subscription; its payload is a msgpack array that begins with the number of its kind. Packet identifiers have
# two bytes each, big-endian, as on the wire. The numbers and orders are persisted: add, never change. An unknown kind
# is skipped.

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
    """Session record as ``pack_record`` writes it."""


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
    Restarted
    | Snapshot
    | Ended
    | Subscribed
    | Unsubscribed
    | Received
    | Released
    | Sending
    | Taken
    | Completed
    | Positions
    | Published
    | WillPublished
    | Lost
    | SharedMoved
    | SharedEnded
)

_ENTRY_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AnyEntry)
_KINDS = range(1, 17)


class JournalRecord(NamedTuple):
    """An entry and its owner."""

    key: str
    """Client identifier, or filter of a shared subscription; empty for ``Restarted``."""
    entry: Entry


def encode_entry(entry: Entry) -> bytes:
    """Return the payload of the entry's record."""
    return _ENTRY_ENCODER.encode(entry)


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
