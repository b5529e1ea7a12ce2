"""The metric catalogue: every metric that a node exports, with its kind and meaning. Units stand in the names.

Counters count from the start of the process; Prometheus knows what to do when they start anew.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric. Names follow the Prometheus conventions: base units, ``_total`` for counters."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


EDGE_METRICS = (
    Metric("weft_edge_connections", "gauge", "Open MQTT connections."),
    Metric("weft_edge_connections_accepted_total", "counter", "MQTT connections accepted."),
    Metric("weft_edge_connections_refused_total", "counter", "Connections closed at once: limits.connections reached."),
    Metric("weft_edge_connect_timeouts_total", "counter", "Connections that sent no CONNECT in time."),
    Metric("weft_edge_keep_alive_timeouts_total", "counter", "Clients silent for longer than their keep alive allows."),
    Metric("weft_edge_write_timeouts_total", "counter", "Clients that did not read what they were sent."),
    Metric("weft_edge_protocol_errors_total", "counter", "Connections closed because the client broke the protocol."),
    Metric(
        "weft_edge_takeovers_total", "counter", "Connections closed because their client identifier connected anew."
    ),
    Metric("weft_edge_sessions", "gauge", "MQTT sessions kept in memory, connected or not."),
    Metric("weft_edge_sessions_evicted_total", "counter", "Sessions forgotten to make room for newer ones."),
    Metric("weft_edge_publishes_received_total", "counter", "Messages received, QoS 2 repetitions not included."),
    Metric("weft_edge_publishes_repeated_total", "counter", "QoS 2 messages received again: acknowledged, not stored."),
    Metric("weft_edge_publishes_unrouted_total", "counter", "Messages whose topic belongs to no stream: not stored."),
    Metric("weft_edge_publish_bytes_received_total", "counter", "Payload bytes received."),
    Metric("weft_edge_wills_published_total", "counter", "Wills published for clients that went away."),
    Metric("weft_edge_acks_sent_total", "counter", "Acknowledgements sent, each after its record was on disk."),
    Metric("weft_edge_log_refusals_total", "counter", "Reads refused because the log was full or had failed."),
    Metric("weft_edge_backpressure_pauses_total", "counter", "Times that reading stopped to wait for the disk."),
    Metric("weft_edge_deliveries_sent_total", "counter", "Messages sent to local subscribers."),
    Metric("weft_edge_deliveries_dropped_total", "counter", "Messages a slow or absent subscriber had no room for."),
    Metric("weft_edge_log_bytes", "gauge", "Disk that the log takes."),
    Metric("weft_edge_log_budget_bytes", "gauge", "Most disk that the log may take."),
    Metric("weft_edge_log_segments", "gauge", "Files of the log."),
    Metric("weft_edge_log_pending_bytes", "gauge", "Bytes taken in that wait for the disk."),
    Metric("weft_edge_log_records_total", "counter", "Records made durable."),
    Metric("weft_edge_log_commits_total", "counter", "Commits: each is one write and one sync."),
    Metric("weft_edge_log_written_bytes_total", "counter", "Bytes written to the log."),
    Metric("weft_edge_log_sync_seconds_total", "counter", "Seconds spent waiting for the disk to sync."),
    Metric("weft_edge_log_full", "gauge", "1 while there is no room for records: devices get no acknowledgements."),
    Metric(
        "weft_edge_log_failed", "gauge", "1 after a write or sync failed: the node takes nothing in until restarted."
    ),
    Metric("weft_edge_stream_next_seq", "gauge", "Sequence number that the stream's next record gets.", ("stream",)),
    Metric("weft_edge_stream_durable_end", "gauge", "One past the stream's last record on disk.", ("stream",)),
    Metric("weft_edge_link_connected", "gauge", "1 while the link to the hub is open.", ("link",)),
    Metric("weft_edge_link_pending_records", "gauge", "Records that the hub has not acknowledged.", ("link",)),
    Metric("weft_edge_link_pending_seconds", "gauge", "Age of the oldest record not acknowledged.", ("link",)),
    Metric("weft_edge_link_sent_bytes_total", "counter", "Compressed bytes sent to the hub.", ("link",)),
    Metric("weft_edge_link_attempts_failed", "gauge", "Failed attempts to connect, in a row.", ("link",)),
    Metric("weft_edge_clock_synchronised", "gauge", "1 when a time source keeps the wall clock right."),
    Metric("weft_edge_start_time_seconds", "gauge", "When the process started, in seconds since 1970."),
)
"""What an edge node serves at ``/metrics``."""

HUB_METRICS = (
    Metric("weft_hub_links", "gauge", "Edges connected to this node."),
    Metric("weft_hub_chunks_total", "counter", "Chunks that this node wrote.", ("shard",)),
    Metric("weft_hub_records_total", "counter", "Records in chunks that this node wrote.", ("shard",)),
    Metric("weft_hub_bytes_total", "counter", "Bytes of chunks that this node wrote.", ("shard",)),
    Metric("weft_hub_foreign_chunks_total", "counter", "Chunks of other nodes that this node read.", ("shard",)),
    Metric("weft_hub_unclear_total", "counter", "Chunk creations that did not end in a clean success.", ("shard",)),
    Metric("weft_hub_retries_total", "counter", "Waits for a store that did not answer.", ("shard",)),
    Metric("weft_hub_reloads_total", "counter", "Times that the state was loaded anew.", ("shard",)),
    Metric("weft_hub_sessions_refused_total", "counter", "Lane sessions sent away.", ("shard",)),
    Metric("weft_hub_pending_bytes", "gauge", "Bytes that wait for the store.", ("shard",)),
    Metric("weft_hub_chunk", "gauge", "Number of the newest chunk known; -1 before the first.", ("shard",)),
    Metric("weft_hub_store_trouble", "gauge", "1 while the store does not answer.", ("shard",)),
)
"""What a hub node serves at ``/metrics``."""
