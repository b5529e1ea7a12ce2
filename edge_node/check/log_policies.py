"""Settings of a node's log and retention of its streams, from its configuration."""

from __future__ import annotations

from weft.config.models import EdgeConfig
from weft.config.streams import Retain
from weft.edge_node.check.derived import carried_streams, intake, streams_of
from weft.edge_node.check.sizes import segment_bytes, unrouted_bytes
from weft.edge_node.streams import raw_stream
from weft.storage.segment_log import LogSettings, SegmentLog, StreamPolicy

READ_BYTES_MAX = 1 << 20
"""Upper bound on a read of a socket by asyncio and uvloop (256 KiB), and on its records in the log."""
PENDING_READS_MIN = 3
"""Minimum number of longest reads that may wait for the disk, for any ``limits.pending``."""
KEY_RECORD_BYTES = 256
"""Approximate bytes of a remembered idempotency key in the log."""
DOWN_RETAIN_S = 7 * 86_400.0
"""Time that messages from hubs stay in the log: as long as the hub's longest expiry."""
DOWN_SHARE = 16
"""Divisor of the log's budget: the maximum share for them."""
KEYS_SHARE = 16
"""Divisor of the log's budget: the maximum share for such keys."""


def log_settings(config: EdgeConfig) -> LogSettings:
    """Return the log's settings from the node's configuration."""
    return LogSettings(
        segment_bytes=segment_bytes(config),
        budget_bytes=config.disk.budget_bytes,
        tail_bytes=config.limits.tail_bytes,
        # The log takes up to twice this, and a read of a persistent session requires room for the longest one. A bound
        # without that room would refuse each such session whenever data waits for the disk.
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


def down_policy(config: EdgeConfig) -> StreamPolicy:
    """Return the retention of messages from hubs. Sessions of clients that were away for longer miss them."""
    return StreamPolicy("drop_oldest", DOWN_RETAIN_S, config.disk.budget_bytes // DOWN_SHARE, replicated=False)


def suppressed_streams(config: EdgeConfig, log: SegmentLog) -> frozenset[int]:
    """Return the numbers of the streams in which messages that devices send again are not stored again."""
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
