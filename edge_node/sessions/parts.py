"""The parts of sessions, assembled once for a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.bounds import Refusals, Rounds
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sessions.delivery_journal import DeliveryJournal
from weft.edge_node.sessions.filters import SessionFilters
from weft.edge_node.sessions.limits import SessionLimits, SessionShares
from weft.edge_node.sessions.log_readers import LogReaders
from weft.edge_node.sessions.persistence import Persistence
from weft.edge_node.sessions.positions import ReaderPositions
from weft.edge_node.sessions.retained_delivery import Match, RetainedDelivery
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.store.change_rates import ChangeRates
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.sessions.store.retained import RetainedMessages
from weft.edge_node.sessions.stored_messages import StoredMessages
from weft.edge_node.sessions.wills import Wills
from weft.edge_node.sessions.window.parts import WindowParts
from weft.edge_node.subscriptions.filter_starts import FilterStarts
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.queue_budget import QueueBudget
from weft.edge_node.subscriptions.shared_subscription import SharedParts
from weft.edge_node.subscriptions.shared_subscriptions import SharedSubscriptions
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.storage.segment_log import SegmentLog


@dataclass(frozen=True, slots=True)
class Kept:
    """State kept across restarts, and the log (``store.BrokerState`` has the rest)."""

    log: SegmentLog
    journal: SessionJournal
    changes: ChangeRates
    retained: RetainedMessages


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    """Parts that deliver messages to clients of any protocol, also to slow and absent ones."""

    budget: QueueBudget
    shares: SessionShares
    starts: FilterStarts
    messages: StoredMessages
    readers: LogReaders


@dataclass(frozen=True, slots=True)
class SessionParts:
    """Every part of sessions. Each is complete after its construction."""

    subscriptions: Subscriptions
    shared: SharedSubscriptions
    filters: SessionFilters
    windows: WindowParts
    readers: LogReaders
    positions: ReaderPositions
    persistence: Persistence
    retained: RetainedDelivery
    wills: Wills
    shares: SessionShares
    journal: SessionJournal


def make_delivery(  # noqa: PLR0917
    segment_log: SegmentLog,
    ingest: Ingest,
    subscriptions: Subscriptions,
    backlog: Backlog,
    outbox: Outbox,
    limits: SessionLimits,
    refusals: Refusals,
    counters: Counters,
    wall_clock: Callable[[], int],
) -> DeliveryParts:
    """Create the parts that all protocols share.

    Args:
        refusals: counts refusals because of shares.
        wall_clock: nanoseconds since 1970.
    """
    starts = FilterStarts()
    messages = StoredMessages(segment_log, ingest, wall_clock, counters)
    return DeliveryParts(
        QueueBudget(limits.queue_bytes_total_max, limits.queue_bytes_per_user_max), SessionShares(limits, refusals),
        starts, messages,
        LogReaders(segment_log, ingest, subscriptions, messages, backlog, starts, outbox, counters),
    )  # fmt: skip


def make_parts(  # noqa: PLR0917
    kept: Kept,
    delivery: DeliveryParts,
    ingest: Ingest,
    subscriptions: Subscriptions,
    outbox: Outbox,
    rounds: Rounds,
    match_retained: Match,
    limits: SessionLimits,
    counters: Counters,
    wall_clock: Callable[[], int],
) -> SessionParts:
    """Create the parts, from the log upwards.

    Args:
        rounds: queue of work that takes longer than a turn.
        match_retained: filter -> retained messages, ``$SYS`` among them.
        wall_clock: nanoseconds since 1970.
    """
    budget, shares, starts = delivery.budget, delivery.shares, delivery.starts
    messages, readers = delivery.messages, delivery.readers
    shared = SharedSubscriptions(
        subscriptions,
        SharedParts(counters, budget, outbox, messages.read, readers.shared_behind, limits.queue_bytes_max, set()),
    )
    positions = ReaderPositions(kept.journal, ingest, readers, starts, shared)
    persistence = Persistence(kept.journal, kept.changes, ingest, readers, starts)
    retained = RetainedDelivery(match_retained, messages.keep_retained, rounds)
    journal = DeliveryJournal(kept.log, kept.journal, positions.note_share, outbox)
    windows = WindowParts(
        counters, budget, outbox, journal, wall_clock,
        limits.inflight_max, limits.queue_bytes_max,
    )  # fmt: skip
    return SessionParts(
        subscriptions, shared,
        SessionFilters(subscriptions, shared, persistence, positions, retained, rounds, limits, shares, counters),
        windows, readers, positions, persistence, retained,
        Wills(ingest, kept.retained, kept.journal, persistence, counters, wall_clock, shares, rounds),
        shares,
        kept.journal,
    )  # fmt: skip
