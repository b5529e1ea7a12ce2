"""The settings of a node's parts, from its configuration. Those of listeners are in ``listeners/from_config.py``."""

from __future__ import annotations

from weft.bounds import one_share
from weft.config.listeners import protocol_of
from weft.config.models import EdgeConfig
from weft.config.streams import Retain
from weft.edge_node.check import (
    carried_streams,
    intake,
    intake_patterns,
    segment_bytes,
    streams_of,
    topics_log_bytes,
    unrouted_bytes,
)
from weft.edge_node.queues.limits import QueueLimits
from weft.edge_node.servers.broker.broker import BrokerSettings
from weft.edge_node.servers.http.settings import HttpSettings
from weft.edge_node.sessions.limits import SessionLimits
from weft.edge_node.sessions.store.settings import StateSettings
from weft.edge_node.streams import raw_stream
from weft.storage.segment_log import LogSettings, SegmentLog, StreamPolicy

READ_BYTES_MAX = 1 << 20
"""Bytes above what asyncio and uvloop read from a socket at a time (256 KiB), and what that becomes in the log."""
PENDING_READS_MIN = 3
"""Least number of longest reads that may wait for the disk, whatever ``limits.pending`` says."""
KEY_RECORD_BYTES = 256
"""Bytes that a remembered idempotency key takes in the log, about."""
KEYS_SHARE = 16
"""No more than this part of the log's budget is for such keys."""
QUEUES_SHARE = 4
"""Divisor of the disk budget: the share of messages in queues, if ``queues.size`` says nothing."""
KEEP_ALIVE_S_MAX = 65_535
"""Longest keep alive that two bytes can hold: as a limit, it is none."""


def log_settings(config: EdgeConfig) -> LogSettings:
    """Return the log's settings from the node's configuration."""
    return LogSettings(
        segment_bytes=segment_bytes(config),
        budget_bytes=config.disk.budget_bytes,
        tail_bytes=config.limits.tail_bytes,
        # The log takes up to twice this, and a read of a persistent session asks for room for the longest one. A bound
        # in which that never fits would refuse each such session whenever anything waits for the disk.
        pending_bytes_max=max(config.limits.pending_bytes, PENDING_READS_MIN * read_reserve_bytes(config)),
        commit_interval_s=config.commit_interval_s,
        compression_level=config.disk.compression_level if config.disk.compression == "zstd" else None,
    )


def read_reserve_bytes(config: EdgeConfig) -> int:
    """Return the room that is reserved before a read of a persistent session is stored."""
    return READ_BYTES_MAX + config.limits.message_bytes


def stream_policies(config: EdgeConfig) -> dict[str, StreamPolicy]:
    """Return the retention of each stream, from the node's configuration.

    Messages that only functions read are released by those functions, as others are by hubs.
    """
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    policies = {
        name: StreamPolicy(stream.when_full, stream.retain.time_s, stream.retain.size_bytes, replicated=name in carried)
        for name, stream in streams_of(config).items()
    }
    for name, stream in config.streams.items():
        if stream.from_ and stream.functions:
            retain = stream.raw if isinstance(stream.raw, Retain) else Retain()
            policies[raw_stream(name)] = StreamPolicy(stream.when_full, retain.time_s, retain.size_bytes)
    return policies


def suppressed_streams(config: EdgeConfig, log: SegmentLog) -> frozenset[int]:
    """Return the numbers of the streams whose messages devices may send again without having them stored again."""
    return frozenset(
        log.stream(intake(name, stream)) for name, stream in config.streams.items() if stream.resent == "suppress"
    )


def unrouted_policy(config: EdgeConfig) -> StreamPolicy:
    """Return the retention of the stream `unrouted`, from the node's configuration."""
    return StreamPolicy("drop_oldest", config.unrouted.time_s, unrouted_bytes(config), replicated=False)


def keys_policy(config: EdgeConfig) -> StreamPolicy:
    """Return the retention of the idempotency keys of requests, from the node's configuration."""
    size = min(config.state.idempotency_keys * KEY_RECORD_BYTES, config.disk.budget_bytes // KEYS_SHARE)
    return StreamPolicy("drop_oldest", config.state.idempotency_window_s, size, replicated=False)


def has_amqp(config: EdgeConfig) -> bool:
    """Return whether a listener speaks AMQP."""
    return any(each is not None and protocol_of(name, each) == "amqp" for name, each in config.listeners.items())


def has_http(config: EdgeConfig) -> bool:
    """Return whether the node has a listener of HTTP."""
    return any(
        listener is not None and protocol_of(name, listener) == "http" for name, listener in config.listeners.items()
    )


def session_limits(config: EdgeConfig) -> SessionLimits:
    """Return the bounds on MQTT sessions from the node's configuration."""
    limits = config.limits
    expiry_s = round(limits.session_expiry_s)
    return SessionLimits(
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


def broker_settings(config: EdgeConfig, software: str) -> BrokerSettings:
    """Return the bounds on MQTT connections from the node's configuration."""
    limits = config.limits
    keep_alive_s = round(limits.keep_alive_s)
    return BrokerSettings(
        patterns=intake_patterns(config),
        sessions=session_limits(config),
        pending_bytes_max=limits.pending_bytes,
        packet_bytes_max=limits.message_bytes,
        connect_bytes_max=limits.connect_bytes,
        unfinished_bytes_max=limits.unfinished_bytes,
        unfinished_bytes_per_user_max=one_share(limits.unfinished_per_user_bytes, limits.unfinished_bytes),
        write_timeout_s=limits.write_timeout_s,
        send_queue_bytes_max=limits.send_queue_bytes,
        receive_maximum=limits.receive_maximum,
        topic_alias_maximum=limits.topic_alias_maximum,
        topic_levels_max=limits.topic_levels,
        closes_on_refusal=config.auth.refused_publish == "close",
        positions_interval_s=config.state.positions_interval_s,
        keep_alive_s_max=0 if keep_alive_s == KEEP_ALIVE_S_MAX else keep_alive_s,
        software=software,
    )


def http_settings(config: EdgeConfig, software: str) -> HttpSettings:
    """Return the bounds of HTTP listeners from the node's configuration."""
    limits, state = config.limits, config.state
    return HttpSettings(
        body_bytes_max=limits.request_bytes,
        message_bytes_max=limits.message_bytes,
        readers_max=limits.http_readers,
        readers_per_user_max=one_share(limits.http_readers_per_user, limits.http_readers),
        write_timeout_s=limits.write_timeout_s,
        window_s=state.idempotency_window_s,
        keys_max=state.idempotency_keys,
        keys_per_user_max=one_share(state.idempotency_keys_per_user, state.idempotency_keys),
        software=software,
    )


def queue_limits(config: EdgeConfig) -> QueueLimits:
    """Return the bounds on exchanges and queues from the node's configuration."""
    bounds = config.queues
    waiting = bounds.size_bytes or config.disk.budget_bytes // QUEUES_SHARE
    return QueueLimits(
        queues_max=bounds.queues,
        queues_per_user_max=one_share(bounds.queues_per_user, bounds.queues),
        exchanges_max=bounds.exchanges,
        exchanges_per_user_max=one_share(bounds.exchanges_per_user, bounds.exchanges),
        bindings_max=bounds.bindings,
        bindings_per_user_max=one_share(bounds.bindings_per_user, bounds.bindings),
        match_cost_max=bounds.match_cost,
        match_cost_per_user_max=one_share(bounds.match_cost_per_user, bounds.match_cost),
        waiting_bytes_max=waiting,
        waiting_bytes_per_user_max=one_share(bounds.size_per_user_bytes, waiting),
        consumers_max=bounds.consumers,
        consumers_per_user_max=one_share(bounds.consumers_per_user, bounds.consumers),
        unacknowledged_max=bounds.unacknowledged,
        unacknowledged_per_user_max=one_share(bounds.unacknowledged_per_user, bounds.unacknowledged),
    )


def state_settings(config: EdgeConfig, suppressed: frozenset[int]) -> StateSettings:
    """Return the bounds on the state of MQTT clients, from the node's configuration.

    Args:
        suppressed: numbers of the streams that say ``resent: suppress``.
    """
    limits, state = config.limits, config.state
    return StateSettings(
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
