"""Bounds on MQTT sessions."""

from __future__ import annotations

from dataclasses import dataclass

from weft.bounds import Bound, Refusals, one_share
from weft.config.models import EdgeConfig
from weft.edge_node.sessions.records import NEVER_EXPIRES
from weft.edge_node.subscriptions.match_cost import MatchCost

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
