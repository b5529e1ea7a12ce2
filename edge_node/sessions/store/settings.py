"""Bounds on the state that the node keeps for MQTT clients across restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.bounds import one_share
from weft.config.models import EdgeConfig
from weft.edge_node.check import topics_log_bytes
from weft.edge_node.check.log_policies import read_reserve_bytes

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
