"""What the broker needs of what survives a restart: records of sessions, and the journal of their changes.

As in ``broker_ports``: every call belongs to the event loop's thread; streams are named by their number in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from weft.protocols.mqtt.packets import Subscription, Will


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """A delivery that was sent and not completed. The message itself is in the log."""

    stream: int
    seq: int
    qos: int
    released: bool = False
    """QoS 2: PUBREC came, so PUBREL is what is sent again."""


class SessionRecord(msgspec.Struct):
    """What a persistent session is after a restart."""

    client_id: str
    version: int
    """Protocol level of the client's last CONNECT: 3, 4 or 5."""
    expiry_interval: int
    """Seconds after the client has gone; ``NEVER_EXPIRES`` for ever. 0: the session ends with its connection, and is
    kept for its will alone."""
    username: str | None = None
    disconnected_at: int | None = None
    """None while connected: then the expiry and the delay of the will count from ``lost_at``."""
    stopped: bool = False
    """The connection ended because the node stopped: the delay of the will counts from ``lost_at``."""
    lost_at: int | None = None
    """When a node started that the connection was not there with any more."""
    subscriptions: dict[str, Subscription] = {}
    """Filter as the client wrote it -> its options (``Subscription.filter`` is the same filter)."""
    identifiers: dict[str, int] = {}
    """Filter -> subscription identifier, for those that have one."""
    began: dict[str, dict[int, int]] = {}
    """Filter -> stream -> seq, where that is beyond the stream's position: the messages before it are older than the
    subscription, and not for it."""
    positions: dict[int, int] = {}
    """Stream -> seq: every message before it is done or in ``inflight``; those from it on are sent from the log,
    without those in ``inflight`` and ``done``. Streams that are missing count from seq 0."""
    inflight: dict[int, Sent] = {}
    """Packet identifier -> delivery, in the order of sending."""
    done: set[tuple[int, int]] = set()
    """(stream, seq) of deliveries at or after their stream's position that the client has completed."""
    received: set[int] = set()
    """Packet identifiers of QoS 2 publishes stored and not yet released by PUBREL."""
    will: Will | None = None
    """The will, until it is published or taken back by DISCONNECT; due ``will_delay_interval`` after
    ``disconnected_at``."""


class SessionJournal(Protocol):
    """Every change of the persistent sessions, in the log: one group commit with the messages.

    A call notes one change, for the next commit of the log; ``Ingest.on_durable`` says when it is durable. Each raises
    LogFull and LogFailed as ``SegmentLog.append`` does; then nothing was noted.
    """

    def together(self) -> AbstractContextManager[None]:
        """A context for the publishes of one read and the changes they make: taken both, or neither. No waiting within.

        Raises:
            LogFull, LogFailed: on entering it; nothing was taken.
        """
        ...

    def opened(self, record: SessionRecord) -> None:
        """A session began, or its client came back (perhaps with another version, expiry or will)."""

    def closed(self, record: SessionRecord) -> None:
        """The client has gone: the whole session as it is now, QoS 1 deliveries in flight included."""

    def ended(self, client_id: str) -> None:
        """The session is no more."""

    def lost(self, client_id: str, at: int) -> None:
        """The node has started, and the session's connection is gone with the last one."""

    def will_published(self, client_id: str) -> None:
        """The will is part of the log, or is not to be published. Within ``together`` with its records: a crash keeps
        either them or the will."""

    def subscribed(
        self, client_id: str, subscription: Subscription, identifier: int | None, began: Mapping[int, int]
    ) -> None:
        """A subscription was added or changed.

        Args:
            began: stream -> the first seq that is its.
        """

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A subscription was taken out."""

    def received(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """QoS 2 publishes of the client were stored."""

    def released(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """PUBREL came for them, or they are to be forgotten."""

    def sent(self, client_id: str, deliveries: Mapping[int, Sent]) -> None:
        """Deliveries are about to be sent; those at QoS 2 once this is durable."""

    def pubrec(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """The client has taken these QoS 2 deliveries."""

    def completed(self, client_id: str, packet_ids: Sequence[int]) -> None:
        """These deliveries are over: into ``done`` unless a position has passed them."""

    def positions(self, client_id: str, positions: Mapping[int, int]) -> None:
        """The streams' positions have moved on to these; streams not named stay where they are."""

    def published(self, client_id: str, acks: bytes, runs: Sequence[tuple[int, int, int]]) -> None:
        """QoS 1 publishes of the client were stored: what ``Resent`` recognises them by.

        Args:
            acks: their PUBACKs, four bytes each (type, 2, packet identifier).
            runs: (stream, first seq, count) of the records of the same read; QoS 0 and 2 ones may be among them.
        """

    def recover(self) -> Sequence[SessionRecord]:
        """The sessions that the last run left, read when the journal was opened; asked once, before any change."""
        ...


class Resent(Protocol):
    """Recognises QoS 1 publishes that a device sends again because it did not see their acknowledgement."""

    async def recognise(self, client_id: str, packet_id: int, topic: bytes, payload: bytes) -> bool:
        """Whether this very publish of the same persistent session is in the log."""
        ...

    def suppresses(self, streams: Sequence[int]) -> bool:
        """Whether all of these streams say ``resent: suppress``: then it is acknowledged and not stored again."""
        ...
