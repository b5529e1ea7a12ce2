"""Objects that all AMQP 1.0 connections of a node share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from weft.bounds import Bound, Owner
from weft.edge_node.access.acl import ALL, Permission
from weft.edge_node.servers.amqp1.kept_links import KeptLink, KeptLinks, LinkName
from weft.edge_node.servers.amqp1.topic_supply import TopicSubscription
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.sessions.filters import cost
from weft.edge_node.streams import RAW_PREFIX, STATE_STREAMS, raw_stream
from weft.edge_node.subscriptions.queue_budget import QueueAccount
from weft.storage.segment_log import SegmentLog

if TYPE_CHECKING:  # they need the engine, which may be missing on a node with only AMQP 0-9-1
    from weft.edge_node.queues.queues import Queues
    from weft.edge_node.servers.amqp1.engine import EngineSettings
    from weft.edge_node.servers.amqp1.outgoing import OutgoingLink

FRAME_BYTES_MAX = 64 << 10
"""Longest frame. An incomplete frame is held in memory, and most clients use the size that they are offered."""
IDLE_S = 60.0
"""Seconds of silence after which a client is treated as dead; it is asked to send a frame every 30 s."""
SESSIONS_MAX = 256
"""Sessions of one connection: go-amqp hangs where it finds fewer than it wants, and its suite wants a hundred."""
SESSION_LINKS = 8
"""Links that a session counts as: the engine takes 11 KB for one, also when it has none."""
LINKS_MAX = 256
"""Links of one connection, on both sides; further ones are refused."""


class _Nobody:
    """Identity for subscriptions whose client has not come back since a restart: its rights are checked at its
    return."""

    username: str | None = None
    unrestricted = True
    admitted = True

    def may_publish(self, topic: bytes) -> bool:  # noqa: ARG002
        return True

    def may_subscribe(self, topic_filter: str) -> bool:  # noqa: ARG002
        return True

    def may_read(self, topic: bytes) -> bool:  # noqa: ARG002
        return True

    def queue_rights(self, topic: str) -> Permission | None:  # noqa: ARG002
        return ALL


NOBODY = _Nobody()


class OpenConnection(Protocol):
    """Interface of one connection for the node."""

    def permissions_changed(self) -> None:
        """Check again whether the client is admitted, and its rights."""

    def end(self, condition: str, description: str) -> None:
        """Close the connection with an error."""


class Parts:
    """Parts created once for a node with a listener for AMQP. Belongs to the event loop's thread."""

    def __init__(
        self,
        context: ProtocolContext,
        segment_log: SegmentLog,
        container: str,
        software: str,
        queues: Queues | None = None,
    ) -> None:
        """Connect context and log.

        Args:
            container: the node's container identifier: its name.
            queues: None on a node without queues.
        """
        limits = context.settings
        self.context = context
        self.log = segment_log
        self.queues = queues
        self.container = container
        self.software = software
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.message_bytes_max = limits.packet_bytes_max
        self.pages = segment_log.page_reader()
        self.connections: set[OpenConnection] = set()
        shares = context.delivery.shares
        self.links = Bound(
            shares.filters.total, shares.filters.share, context.refusals,
            "limits.subscriptions_total", "limits.subscriptions_per_user", "links and sessions of AMQP 1.0",
        )  # fmt: skip
        """Links and sessions of all clients."""
        self.subscriptions: dict[LinkName, TopicSubscription] = {}
        """Subscriptions to topics that outlive their connections."""
        self.holders: dict[LinkName, OutgoingLink] = {}
        """Links that are attached now and outlive their connections."""
        self.kept = KeptLinks(segment_log, shares.sessions, context.wall_clock, limits.sessions.expiry_s_max)

    def start(self) -> None:
        """Restore the links of the last run."""
        self.kept.load()
        self.kept.on_end = self._ended
        for name, kept in self.kept.all():
            if kept.filter:
                self._take_up(name, kept)
        self.context.call_later(self.context.settings.positions_interval_s, self._look_after_links)

    def close(self) -> None:
        """Close every connection. Unsettled messages are sent again."""
        for connection in list(self.connections):
            connection.end("amqp:connection:forced", "the node stops")
        self.kept.save()

    def permissions_changed(self) -> None:
        """Check the clients' rights again: users or access rules were read again."""
        for connection in list(self.connections):
            connection.permissions_changed()

    def engine_settings(self) -> EngineSettings:
        """Return the settings that ``open`` announces. The engine must be loaded."""
        from weft.edge_node.servers.amqp1.engine import EngineSettings

        return EngineSettings(
            container=self.container, frame_bytes_max=self.frame_bytes_max, idle_s=IDLE_S, sessions_max=SESSIONS_MAX
        )

    def stream_in(self, name: str) -> int | None:
        """Return the stream of the log for messages to a stream; None when clients cannot write it."""
        known, taking = self.log.streams(), self.context.routing.taking
        return next((known[each] for each in (raw_stream(name), name) if known.get(each, -1) in taking), None)

    def stream_out(self, name: str) -> int | None:
        """Return the stream of the log that a client may read under a name."""
        if name in STATE_STREAMS or name.startswith(RAW_PREFIX):
            return None
        return self.log.streams().get(name)

    def unsubscribe(self, owner: Owner, subscription: TopicSubscription) -> None:
        """End a subscription."""
        shares = self.context.delivery.shares
        subscription.finish()
        shares.filter_bytes.free(owner, cost(subscription.filter))
        shares.match_cost.free(owner, subscription.filter)
        self.context.counters.subscriptions -= 1

    def restore(self, subscription: TopicSubscription, name: LinkName, kept: KeptLink) -> None:
        """Resume a subscription at the position of the node's last run."""
        numbers = self.log.streams()
        positions = {numbers[stream]: seq for stream, seq in kept.positions.items() if stream in numbers}
        owed = [(numbers[stream], seq) for stream, seqs in kept.owed.items() if stream in numbers for seq in seqs]
        subscription.resume(positions, owed)
        if name in self.kept.crashed:
            subscription.doubtful = self.kept.ends

    def _take_up(self, name: LinkName, kept: KeptLink) -> None:
        """Subscribe for a client that is away: messages that no stream stores are stored for it meanwhile."""
        context, shares = self.context, self.context.delivery.shares
        delivery = context.delivery
        subscription = TopicSubscription(
            f"{name.container[:80]}/{name.link[:80]}", kept.filter, NOBODY, context.subscriptions,
            context.delivery.readers, context.outbox, context.counters,
            QueueAccount(delivery.budget, context.settings.sessions.queue_bytes_max, name.owner), persistent=True,
        )  # fmt: skip
        self.restore(subscription, name, kept)
        shares.filter_bytes.hold(name.owner, cost(kept.filter))
        shares.match_cost.hold(name.owner, kept.filter)
        context.counters.subscriptions += 1
        subscription.begin()
        self.subscriptions[name] = subscription

    def _ended(self, name: LinkName) -> None:
        subscription = self.subscriptions.pop(name, None)
        if subscription is not None:
            self.unsubscribe(name.owner, subscription)

    def _look_after_links(self) -> None:
        self.kept.save()
        self.context.call_later(self.context.settings.positions_interval_s, self._look_after_links)
