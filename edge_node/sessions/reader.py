"""What one session reads from the log, and what of it the client gets."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import NOWHERE, PUBLISHER, Message
from weft.edge_node.subscriptions.subscriptions import Entry, Grant, Subscriptions
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.storage.segment_log import LogFailed

if TYPE_CHECKING:
    from weft.edge_node.sessions.client_window import Outbound


log = logging.getLogger(__name__)


class ReaderKeeper(Protocol):
    """What readers ask of ``Keeping``."""

    counters: Counters
    subscriptions: Subscriptions

    def message_of(self, stream: int, record: LogRecord) -> Message | None:
        """A record as a message; None when it is not to be delivered (any more)."""
        ...

    def flush(self) -> None:
        """Write what was gathered for each client."""


class SessionReader:
    """The ``Reader`` of one session's ``CatchUp``."""

    def __init__(
        self,
        outbound: Outbound,
        keeper: ReaderKeeper,
        done: set[tuple[int, int]] | None = None,
        doubtful: dict[int, int] | None = None,
    ) -> None:
        """Read for a client.

        Args:
            done: (stream, seq) of what a restart has left to be read although the client has it.
            doubtful: stream -> the first seq after a crash. The client was connected in the crash and may have been
                sent what is before it, without the journal's having come to know: that is sent with DUP.
        """
        self._doubtful = doubtful or {}
        self._outbound = outbound
        self._keeper = keeper
        self.done = done or set()
        """Of these, and of what was in flight when the session fell behind, none is sent again."""
        for message, _, _ in outbound.inflight.values():
            self.done.add((message.stream, message.seq))
        self._told_of_loss = False
        self._newer: dict[Entry, dict[int, int]] = {}
        """Subscriptions made while the session was behind -> stream -> the first seq that is theirs."""

    @property
    def name(self) -> str:
        """For log lines."""
        return f"MQTT client {self._outbound.client_id!r}"

    @property
    def has_room(self) -> bool:
        """Whether one more message can be sent at once."""
        return self._outbound.window_open

    def began(self, entry: Entry, ends: dict[int, int]) -> None:
        """A subscription that gets nothing published before it."""
        self._newer[entry] = ends

    def wants(self, topic: bytes) -> bool:
        """Whether the client is subscribed at QoS 1 or 2."""
        grant = self._keeper.subscriptions.plan(topic).grant_of(self._outbound)
        return grant is not None and grant.qos > 0

    def read(self, stream: int, record: LogRecord) -> None:
        """Send a message that was read; there is room."""
        if (stream, record.seq) in self.done:
            self.done.discard((stream, record.seq))
            return
        grant = self._grant(stream, record)
        message = self._keeper.message_of(stream, record) if grant is not None else None
        if grant is None or message is None:
            return
        qos = min(message.qos, grant.qos)
        if qos:
            dup = qos == 1 and record.seq < self._doubtful.get(stream, 0)  # [MQTT-3.3.1-1]
            self._outbound.send(message, grant, qos, dup=dup)
            self._keeper.flush()

    def lost(self, count: int) -> None:
        """The log no longer had some records."""
        self._keeper.counters.deliveries_lost += count
        if not self._told_of_loss:
            self._told_of_loss = True
            log.warning("%s is too slow: the log has deleted %d records before it read them", self.name, count)

    def live(self) -> None:
        """The session is level: what was queued meanwhile is sent."""
        self._outbound.catch_up = None
        self._outbound.pump()
        self._keeper.flush()

    def fetch_inflight(self, backlog: Backlog) -> None:
        """Read what a restart has left in flight, then send it again."""
        task = asyncio.get_running_loop().create_task(self._fetch(backlog))
        _FETCHING.add(task)
        task.add_done_callback(_FETCHING.discard)

    async def _fetch(self, backlog: Backlog) -> None:
        outbound = self._outbound
        missing = {packet_id: message for packet_id, (message, _, _) in outbound.inflight.items() if not message.topic}
        for stream in {message.stream for message in missing.values()} - {NOWHERE}:
            seqs = [message.seq for message in missing.values() if message.stream == stream]
            try:
                found = await backlog.fetch(stream, seqs)
            except (OSError, LogFailed) as error:
                log.warning("could not read what %s has in flight: %s", self.name, error)
                if outbound.link is not None:
                    outbound.link.displace(ReasonCode.UNSPECIFIED_ERROR)
                return
            for packet_id, message in missing.items():
                if message.stream == stream and packet_id in outbound.inflight:
                    record = found.get(message.seq)
                    outbound.set_read(packet_id, record and self._keeper.message_of(stream, record))
        outbound.pump()
        self._keeper.flush()

    def _grant(self, stream: int, record: LogRecord) -> Grant | None:
        grant = self._keeper.subscriptions.plan(record.topic).grant_of(self._outbound)
        if grant is None or (grant.no_local and (PUBLISHER, self._outbound.client_id) in record.headers):
            return None
        late = [entry for entry, ends in self._newer.items() if record.seq < ends.get(stream, 0)]
        if not late:
            return grant
        entries = self._keeper.subscriptions.entries(record.topic, self._outbound)
        matching = [entry for entry in entries if entry not in late]
        return Grant(matching) if matching else None


_FETCHING: set[asyncio.Task[None]] = set()
"""Keeps tasks alive until they are done; each belongs to one connection and reads at most its in-flight window."""
