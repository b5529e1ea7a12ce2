"""Records of the state that survives a restart, their formats in the journal and the database, and the bounds on
sessions and their state. Streams are named by their number in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from weft.bounds import Bound, Owner, Rates, Refusals, one_share
from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import read_reserve_bytes, topics_log_bytes
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


# Bounds on MQTT sessions.

FILTER_LEVELS_MAX = 128
"""Deeper filters are refused in SUBACK. EMQX has the same default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Bounds on the memory of sessions."""

    sessions_max: int = 10_000
    """Sessions of all clients. Beyond it, the session whose client has been away longest is deleted; when all are
    connected, clients are refused."""
    connections_per_user_max: int | None = None
    """Connected clients of one user; further ones are refused. None: no share."""
    sessions_per_user_max: int | None = None
    """Sessions of one owner; beyond it the one that has been without a client longest is deleted. None: no share."""
    filters_max: int = 1_000
    """Subscriptions of one session; further ones are refused in SUBACK."""
    filters_total_max: int = 1_000_000
    """The same of all sessions together."""
    filters_per_user_max: int | None = None
    """The same of one owner; None: no share."""
    filter_levels_max: int = FILTER_LEVELS_MAX
    filter_bytes_max: int = 65_535
    """Longer filters are refused; MQTT has no longer ones [MQTT-4.7.3-3]."""
    filters_bytes_max: int = 4 << 20
    """Memory of one session's filters, by ``filters.cost``; further ones are refused."""
    filters_bytes_total_max: int = 256 << 20
    """The same of all sessions together."""
    filters_bytes_per_user_max: int | None = None
    """The same of one owner; None: no share."""
    match_cost_max: int = 4_096
    """Nodes of the filter tree that one topic may visit because of uncommon filters (``subscriptions.match_cost``)."""
    match_cost_per_user_max: int | None = None
    """The same of one owner, and its shares; None: no share."""
    inflight_max: int = 100
    """QoS 1 and 2 deliveries sent to one client and not completed."""
    queue_bytes_max: int = 1 << 20
    """QoS 1 and 2 deliveries kept in memory for one client, sent or waiting."""
    queue_bytes_total_max: int = 64 << 20
    """The same of all clients together."""
    queue_bytes_per_user_max: int | None = None
    """The same of one owner; None: no share."""
    will_bytes_max: int = 16 << 20
    """Wills of all clients together; a client whose will has no room is refused."""
    will_bytes_per_user_max: int | None = None
    """The same of one owner; None: no share."""
    expiry_s_max: int = NEVER_EXPIRES
    """Longest time that a session outlives its connection; ``NEVER_EXPIRES`` for any."""
    expiry_s_of_old_versions: int = 7 * 86_400
    """Lifetime of sessions without clean session before MQTT 5.0; clients of 5.0 choose it themselves."""

    @classmethod
    def of(cls, config: EdgeConfig) -> SessionLimits:
        """Return the bounds that a configuration sets."""
        limits = config.limits
        expiry_s = round(limits.session_expiry_s)
        return cls(
            sessions_max=limits.sessions,
            connections_per_user_max=one_share(limits.connections_per_user, limits.connections),
            sessions_per_user_max=one_share(limits.sessions_per_user, limits.sessions),
            filters_max=limits.subscriptions,
            filters_total_max=limits.subscriptions_total,
            filters_per_user_max=one_share(limits.subscriptions_per_user, limits.subscriptions_total),
            filter_levels_max=limits.topic_levels,
            match_cost_max=limits.match_cost,
            match_cost_per_user_max=one_share(limits.match_cost_per_user, limits.match_cost),
            inflight_max=limits.inflight,
            queue_bytes_max=limits.session_queue_bytes,
            queue_bytes_total_max=limits.session_queues_bytes,
            queue_bytes_per_user_max=one_share(limits.session_queues_per_user_bytes, limits.session_queues_bytes),
            filter_bytes_max=limits.filter_bytes,
            filters_bytes_max=limits.filters_bytes,
            filters_bytes_total_max=limits.filters_total_bytes,
            filters_bytes_per_user_max=one_share(limits.filters_per_user_bytes, limits.filters_total_bytes),
            will_bytes_max=limits.wills_bytes,
            will_bytes_per_user_max=one_share(limits.wills_per_user_bytes, limits.wills_bytes),
            expiry_s_max=expiry_s,
            expiry_s_of_old_versions=expiry_s,
        )


class SessionShares:
    """Bounds on all sessions together and on those of one owner, its user or else its address.

    Where a total is full, the owner that has most makes room first, by absent sessions of its own.
    """

    def __init__(self, limits: SessionLimits, refusals: Refusals) -> None:
        """Start with nothing taken."""

        def bound(total: int, share: int | None, setting: str, share_setting: str, what: str) -> Bound:
            return Bound(total, total if share is None else share, refusals, setting, share_setting, what)

        self.connections = bound(
            limits.sessions_max, limits.connections_per_user_max,
            "limits.connections", "limits.connections_per_user", "connections",
        )  # fmt: skip
        self.sessions = bound(
            limits.sessions_max, limits.sessions_per_user_max,
            "limits.sessions", "limits.sessions_per_user", "connected clients",
        )  # fmt: skip
        self.filters = bound(
            limits.filters_total_max, limits.filters_per_user_max,
            "limits.subscriptions_total", "limits.subscriptions_per_user", "subscriptions",
        )  # fmt: skip
        self.filter_bytes = bound(
            limits.filters_bytes_total_max, limits.filters_bytes_per_user_max,
            "limits.filters_total_size", "limits.filters_per_user_size", "filters",
        )  # fmt: skip
        share = limits.match_cost_per_user_max
        self.match_cost = MatchCost(limits.match_cost_max, limits.match_cost_max if share is None else share, refusals)
        """Cost of a message because of filters."""
        self.will_bytes = bound(
            limits.will_bytes_max, limits.will_bytes_per_user_max, "limits.wills", "limits.wills_per_user", "wills"
        )


# Bounds on the state that the node keeps for MQTT clients across restarts.

MiB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """Bounds; ``StateCounters`` has a counter of the use or the refusals of each."""

    retained_messages_max: int = 50_000
    """Retained messages; further topics are refused."""
    retained_messages_per_user_max: int | None = None
    """The same of one owner; None: no share."""
    retained_bytes_max: int = 64 * MiB
    """Memory that retained messages may take, as ``RetainedMessages`` estimates it."""
    retained_bytes_per_user_max: int | None = None
    """The same of one owner; None: no share."""
    save_interval_s: float = 5.0
    """Interval at which the journal is folded into the database, so that the log can release the journal's records."""
    save_bytes: int = 4 * MiB
    """Journal bytes at which the journal is folded before the interval has passed."""
    journal_bytes_max: int = 64 * MiB
    """Journal not yet in the database (with a full or failing disk). Beyond it, changes of sessions are refused. It
    bounds the reads of a restart."""
    journal_bytes_per_user: int = 4 * MiB
    """Journal bytes per second by one owner's sessions; beyond it, its clients wait."""
    reserve_bytes: int = 2 * MiB
    """Room in the log that is required before a read of a persistent session is stored: enough for a read, and a packet
    that the read before it cut in two."""
    resent_window: int = 1_000
    """Publishes of one session by which a repeat is recognised. More than clients keep unacknowledged: Paho and
    Mosquitto 20, MQTT 5.0 clients up to ``receive_maximum``."""
    resent_total_max: int = 200_000
    """The same of all sessions, some 250 bytes each for publishes in reads of their own; beyond it, sessions that
    published longest ago lose theirs."""
    resent_per_user_max: int | None = None
    """The same of the sessions of one user; beyond it, the user's own are forgotten. None: no share."""
    backlog_buffer_bytes: int = 16 * MiB
    """Decoded batches kept for sessions that are behind."""
    backlog_page_records: int = 250
    """Records in one page: each takes 1 µs to assemble, and a slow client holds a page."""
    backlog_page_bytes: int = 64 << 10
    """Bytes in one page; at least one record."""
    backlog_reads: int = 2
    """Reads of the disk at a time; each holds about 1 MiB, or one longer record."""
    topics_log_bytes: int = 1 << 30
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
        limits, state = config.limits, config.state
        return cls(
            retained_messages_max=limits.retained,
            retained_messages_per_user_max=one_share(limits.retained_per_user, limits.retained),
            retained_bytes_max=limits.retained_bytes,
            retained_bytes_per_user_max=one_share(limits.retained_per_user_bytes, limits.retained_bytes),
            save_interval_s=state.save_interval_s,
            save_bytes=state.save_bytes,
            journal_bytes_max=state.journal_bytes,
            journal_bytes_per_user=state.journal_bytes_per_user,
            reserve_bytes=read_reserve_bytes(config),
            resent_window=state.resent_window,
            resent_total_max=state.resent_total,
            resent_per_user_max=one_share(state.resent_per_user, state.resent_total),
            backlog_buffer_bytes=state.backlog_buffer_bytes,
            backlog_page_records=state.backlog_page_records,
            backlog_page_bytes=state.backlog_page_bytes,
            backlog_reads=state.backlog_reads,
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
        self._rates: Rates[Owner] = Rates(bytes_per_s, bytes_per_s * BURST_S, refusals.clock)
        self._refusals = refusals

    def charge(self, owner: Owner, change: Callable[[], None]) -> None:
        """Make a change, and charge its journal bytes to the owner."""
        before = self._noted()
        try:
            change()
        finally:
            more = self._noted() - before
            if more:
                self._rates.charge(owner, more)

    def wait_s(self, owner: Owner) -> float:
        """Return the seconds until the owner may change its sessions again."""
        return self._rates.debt_s(owner)

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
