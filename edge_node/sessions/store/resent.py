"""Publishes that a device sends again because it did not see their acknowledgement, recognised from the log.

A publish with DUP of a persistent session is *the same* as an earlier one when client identifier, packet identifier,
QoS, topic and payload are those of the last publish of the session that used the packet identifier, and that one's
record is in the log. A publish without DUP is always new, and hides the earlier publish with its packet identifier.
This holds across a restart of the node and across SIGKILL: a publish without a journal entry is not in the log either.

The node cannot know whether a client whose PUBACK did arrive used the packet identifier once more for a message of the
same topic and payload, whose first transmission never came, and sends that again with DUP. A client that always uses
the same few identifiers for messages that are all alike can thus lose one under ``resent: suppress``; under ``flag``,
the default, it is stored and marked. Publishes further back than ``resent_window`` are not recognised: a client should
not leave more than that unacknowledged. Within one read that went to several streams the order of the identifiers is
not kept; there, any record of the same read with the same topic and payload counts.

A QoS 2 publish is recognised only where a power cut kept its record and not the whole of its commit, so that it was
neither acknowledged nor counted as received: there, too, it must not be stored twice.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from weft.bounds import Shares
from weft.edge_node.access.identity import user_of_session
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.store.entries import Run
from weft.edge_node.sessions.store.recent_publishes import Found, RecentPublishes
from weft.edge_node.sessions.store.settings import StateCounters, StateSettings
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.protocols.batch import Flag
from weft.storage.segment_log import SegmentLog

_QOS = Flag.PUBLISHED_QOS0 | Flag.PUBLISHED_QOS2
_QOS_FLAGS = {1: 0, 2: int(Flag.PUBLISHED_QOS2)}
_FETCH_RECORDS = 1_000


class Resent:
    """The last publishes of each persistent session. Event loop's thread only."""

    def __init__(
        self,
        log: SegmentLog,
        backlog: Backlog,
        known: Mapping[str, RecentPublishes],
        settings: StateSettings,
        counters: StateCounters,
    ) -> None:
        """Start with the publishes that recovery found.

        Args:
            known: client identifier -> publishes.
        """
        self._log = log
        self._backlog = backlog
        self._settings = settings
        self._counters = counters
        self._sessions: OrderedDict[str, RecentPublishes] = OrderedDict()
        """In the order of the last publish, oldest first."""
        total, share = settings.resent_total_max, settings.resent_per_user_max
        self._shares: Shares[str] = Shares(total, total if share is None else share)
        self._of_user: dict[str, dict[str, None]] = {}
        """User -> its sessions, in the order of the last publish: a user beyond its share loses the oldest."""
        for client_id, recent in known.items():
            if recent.count:
                self._keep(client_id, recent)
                self._note(user_of_session(client_id), recent.count)

    def published(self, client_id: str, qos: int, packet_ids: bytes, runs: tuple[Run, ...]) -> None:
        """Remember a read of publishes: at QoS 1, stored as ``runs``; at QoS 2, without runs, as identifiers in use."""
        recent = self._sessions.get(client_id) or RecentPublishes()
        user = self._keep(client_id, recent)
        before = recent.count
        recent.add(qos, packet_ids, runs, self._settings.resent_window)
        self._note(user, recent.count - before)

    def forget(self, client_id: str) -> None:
        """Forget the publishes of a session that has ended: its packet identifiers are free again."""
        if client_id in self._sessions:
            self._drop(client_id)

    async def recognise(self, client_id: str, packet_id: int, topic: bytes, payload: bytes) -> bool:
        """Return whether this publish, received with DUP, is in the log already. See the module's text.

        Reads the log, mostly from memory; waits for the earlier attempt to be durable if it is not yet.

        Raises:
            OSError, LogFailed: the log cannot be read, or has failed.
        """
        recent = self._sessions.get(client_id)
        found = recent.find(packet_id) if recent is not None else None
        if found is None or not found.runs:
            return False
        if any(first + count > self._log.durable_end(stream) for stream, first, count in found.runs):
            await self._log.durable()
        for run in found.runs:
            if await self._holds(run, found, topic, payload):
                self._counters.resent_recognised += 1
                return True
        return False

    def suppress(self, streams: frozenset[int]) -> None:
        """Set the streams with ``resent: suppress``, in place of all earlier ones."""
        self._settings = dataclasses.replace(self._settings, suppressed=streams)

    def suppresses(self, streams: Sequence[int]) -> bool:
        """Return whether all streams have ``resent: suppress``: the publish is acknowledged and not stored again."""
        return bool(streams) and self._settings.suppressed.issuperset(streams)

    async def _holds(self, run: Run, found: Found, topic: bytes, payload: bytes) -> bool:
        stream, first, count = run
        if count == found.publishes and _is(
            await self._record(stream, first + found.rank), found.qos, topic, payload
        ):  # mostly the read had nothing else, and the place is known
            return True
        rank, seen, at_rank = 0, False, False
        for start in range(first, first + count, _FETCH_RECORDS):
            seqs = range(start, min(start + _FETCH_RECORDS, first + count))
            for record in (await self._backlog.fetch(stream, seqs)).values():
                if record.flags & _QOS != _QOS_FLAGS[found.qos]:
                    continue
                same = _is(record, found.qos, topic, payload)
                seen |= same
                at_rank |= same and rank == found.rank
                rank += 1
        return at_rank if rank == found.publishes else seen

    async def _record(self, stream: int, seq: int) -> LogRecord | None:
        return (await self._backlog.fetch(stream, (seq,))).get(seq)

    # --- shares

    def _keep(self, client_id: str, recent: RecentPublishes) -> str:
        """Make a session the most recent publisher; return its user."""
        user = user_of_session(client_id)
        self._sessions[client_id] = recent
        self._sessions.move_to_end(client_id)
        own = self._of_user.setdefault(user, {})
        own.pop(client_id, None)
        own[client_id] = None
        return user

    def _note(self, user: str, more: int) -> None:
        """Count publishes, and forget those of the sessions that published longest ago: first of this user."""
        shares = self._shares
        if more < 0:
            shares.free(user, -more)
        else:
            shares.hold(user, more)
        while user and shares.is_own_share_full(user, 0) and len(self._of_user[user]) > 1:
            self._forget_oldest(next(iter(self._of_user[user])))
        while shares.used > shares.total and len(self._sessions) > 1:
            self._forget_oldest(next(iter(self._sessions)))
        self._counters.resent_remembered = shares.used

    def _forget_oldest(self, client_id: str) -> None:
        self._counters.resent_forgotten += self._sessions[client_id].count
        self._drop(client_id)

    def _drop(self, client_id: str) -> None:
        user = user_of_session(client_id)
        self._shares.free(user, self._sessions.pop(client_id).count)
        self._counters.resent_remembered = self._shares.used
        own = self._of_user[user]
        del own[client_id]
        if not own:
            del self._of_user[user]


def _is(record: LogRecord | None, qos: int, topic: bytes, payload: bytes) -> bool:
    return (
        record is not None
        and record.flags & _QOS == _QOS_FLAGS[qos]
        and record.topic == topic
        and record.payload == payload
    )
