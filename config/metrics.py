"""The metric catalogue: every metric that a node exports, with its kind and meaning. Units stand in the names.

Counters count from the start of the process; Prometheus knows what to do when they start anew.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric. Names follow the Prometheus conventions: base units, ``_total`` for counters."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of what stands on the page: three for a histogram, else its own."""
        endings = ("_bucket", "_count", "_sum") if self.kind == "histogram" else ("",)
        return tuple(self.name + ending for ending in endings)


EDGE_METRICS = (
    Metric("weft_edge_connections", "gauge", "Open MQTT connections."),
    Metric("weft_edge_connections_accepted_total", "counter", "MQTT connections accepted."),
    Metric("weft_edge_connections_refused_total", "counter", "Clients not let in: limits.connections reached."),
    Metric(
        "weft_edge_connections_rate_limited_total",
        "counter",
        "Connections closed at once: too many or too often from one address.",
    ),
    Metric("weft_edge_connections_half_open", "gauge", "Connections whose client is not let in yet."),
    Metric("weft_edge_half_open_evicted_total", "counter", "Half-open connections given up for newer ones."),
    Metric("weft_edge_handshakes_failed_total", "counter", "TLS handshakes and WebSocket upgrades that failed."),
    Metric(
        "weft_edge_proxy_headers_refused_total",
        "counter",
        "Connections without a good PROXY header, or not from a trusted proxy.",
    ),
    Metric("weft_edge_accept_pauses_total", "counter", "Times that nothing was accepted: no file descriptor was left."),
    Metric("weft_edge_authentications_refused_total", "counter", "Clients that were not let in."),
    Metric(
        "weft_edge_authentications_turned_away_total",
        "counter",
        "Clients that were not let in because limits.authentications was reached.",
    ),
    Metric("weft_edge_authentications_waiting", "gauge", "Passwords that wait to be checked."),
    Metric("weft_edge_reloads_total", "counter", "Users, access rules and certificates read again."),
    Metric("weft_edge_reload_failures_total", "counter", "Changed files that could not be used."),
    Metric("weft_edge_connect_timeouts_total", "counter", "Connections that sent no CONNECT in time."),
    Metric("weft_edge_keep_alive_timeouts_total", "counter", "Clients silent for longer than their keep alive allows."),
    Metric("weft_edge_write_timeouts_total", "counter", "Clients that did not read what they were sent."),
    Metric("weft_edge_protocol_errors_total", "counter", "Connections closed because the client broke the protocol."),
    Metric(
        "weft_edge_takeovers_total", "counter", "Connections closed because their client identifier connected anew."
    ),
    Metric(
        "weft_edge_clients_expelled_total",
        "counter",
        "Connections closed because their user was removed or has another password.",
    ),
    Metric("weft_edge_sessions", "gauge", "MQTT sessions kept in memory, connected or not."),
    Metric("weft_edge_sessions_evicted_total", "counter", "Sessions forgotten to make room for newer ones."),
    Metric("weft_edge_sessions_expired_total", "counter", "Sessions whose time without a client was over."),
    Metric("weft_edge_sessions_refused_total", "counter", "Clients refused: limits.sessions are connected."),
    Metric("weft_edge_sessions_behind_total", "counter", "Times that a session began to read from the log again."),
    Metric("weft_edge_sessions_saved_total", "counter", "Session records written to the database."),
    Metric("weft_edge_journal_bytes", "gauge", "Changes of sessions in the log and not yet in the database."),
    Metric("weft_edge_journal_refused_total", "counter", "Changes of sessions refused because there were too many."),
    Metric("weft_edge_database_failures_total", "counter", "Transactions of the session database that failed."),
    Metric("weft_edge_subscriptions", "gauge", "Subscriptions of all sessions."),
    Metric("weft_edge_subscriptions_refused_total", "counter", "Subscriptions over a limit or not allowed."),
    Metric("weft_edge_retained", "gauge", "Retained messages."),
    Metric("weft_edge_retained_bytes", "gauge", "Memory that retained messages take."),
    Metric("weft_edge_retained_refused_total", "counter", "Retained messages not kept because a limit was reached."),
    Metric("weft_edge_retained_expired_total", "counter", "Retained messages whose expiry has passed."),
    Metric("weft_edge_packets_received_total", "counter", "MQTT packets received."),
    Metric("weft_edge_bytes_received_total", "counter", "Bytes of all packets read from MQTT clients."),
    Metric("weft_edge_bytes_sent_total", "counter", "Bytes of all packets written to MQTT clients."),
    Metric("weft_edge_publishes_denied_total", "counter", "Messages that access rules forbid: not stored."),
    Metric("weft_edge_publishes_resent_total", "counter", "Messages found in the log and not stored again."),
    Metric("weft_edge_resent_recognised_total", "counter", "Messages that devices sent again, found in the log."),
    Metric("weft_edge_resent_remembered", "gauge", "Messages that would be recognised if they were sent again."),
    Metric("weft_edge_resent_forgotten_total", "counter", "Messages no longer recognised: too many of all sessions."),
    Metric("weft_edge_publishes_received_total", "counter", "Messages received, QoS 2 repetitions not included."),
    Metric("weft_edge_publishes_repeated_total", "counter", "QoS 2 messages received again: acknowledged, not stored."),
    Metric("weft_edge_publishes_unrouted_total", "counter", "Messages that no stream matches: see `unrouted`."),
    Metric("weft_edge_publish_bytes_received_total", "counter", "Payload bytes received."),
    Metric("weft_edge_wills_published_total", "counter", "Wills published for clients that went away."),
    Metric("weft_edge_wills_refused_total", "counter", "Clients refused because limits.wills was reached."),
    Metric("weft_edge_wills_waiting", "gauge", "Wills that are due and wait for the disk or for room in the log."),
    Metric("weft_edge_will_bytes", "gauge", "Memory that wills take."),
    Metric("weft_edge_acks_sent_total", "counter", "Acknowledgements sent, each after its record was on disk."),
    Metric("weft_edge_log_refusals_total", "counter", "Reads refused because the log was full or had failed."),
    Metric("weft_edge_backpressure_pauses_total", "counter", "Times that reading stopped to wait for the disk."),
    Metric(
        "weft_edge_receive_maximum_pauses_total",
        "counter",
        "Times that a client was not read because it had sent more than its receive maximum unacknowledged.",
    ),
    Metric("weft_edge_deliveries_sent_total", "counter", "Messages sent to local subscribers."),
    Metric("weft_edge_deliveries_dropped_total", "counter", "Messages a slow or absent subscriber had no room for."),
    Metric("weft_edge_deliveries_too_large_total", "counter", "Messages longer than the subscriber takes."),
    Metric("weft_edge_deliveries_lost_total", "counter", "Messages the log had deleted before a session read them."),
    Metric("weft_edge_messages_expired_total", "counter", "Messages not sent because their expiry had passed."),
    Metric("weft_edge_backlog_pages_total", "counter", "Pages read from the log for sessions that are behind."),
    Metric("weft_edge_backlog_disk_reads_total", "counter", "Reads of the disk for sessions that are behind."),
    Metric("weft_edge_backlog_waits_total", "counter", "Reads that waited for others: state.backlog_reads reached."),
    Metric("weft_edge_backlog_evicted_total", "counter", "Batches given up: state.backlog_buffer reached."),
    Metric("weft_edge_backlog_buffer_bytes", "gauge", "Memory of batches decoded for sessions that are behind."),
    Metric("weft_edge_backlog_lost_total", "counter", "Records gone from the log before sessions read them."),
    Metric(
        "weft_edge_topics_abandoned_total", "counter", "Messages of no stream given up although a session lacks them."
    ),
    Metric("weft_edge_log_bytes", "gauge", "Disk that the log takes."),
    Metric("weft_edge_log_budget_bytes", "gauge", "Most disk that the log may take."),
    Metric("weft_edge_log_segments", "gauge", "Files of the log."),
    Metric("weft_edge_log_pending_bytes", "gauge", "Bytes taken in that wait for the disk."),
    Metric("weft_edge_log_records_total", "counter", "Records made durable."),
    Metric("weft_edge_log_commits_total", "counter", "Commits: each is one write and one sync."),
    Metric("weft_edge_log_written_bytes_total", "counter", "Bytes written to the log."),
    Metric("weft_edge_log_sync_seconds_total", "counter", "Seconds spent waiting for the disk to sync."),
    Metric("weft_edge_log_sync_latency_seconds", "histogram", "Time of one write and sync of the log."),
    Metric(
        "weft_edge_ack_latency_seconds",
        "histogram",
        "Time from a commit's first message to its being on disk: the longest that its acknowledgements waited.",
    ),
    Metric("weft_edge_log_unsafe_bytes", "gauge", "Bytes of the log that must stay: no hub has them, or retention."),
    Metric("weft_edge_log_device_written_bytes_total", "counter", "Bytes of the disk's 4 KiB pages that were written."),
    Metric("weft_edge_log_payload_bytes_total", "counter", "Bytes of the payloads made durable."),
    Metric("weft_edge_log_moved_bytes_total", "counter", "Bytes of records copied into newer files of the log."),
    Metric(
        "weft_edge_log_write_amplification", "gauge", "Bytes written to the disk per payload byte; 0 before the first."
    ),
    Metric(
        "weft_edge_log_card_lifetime_seconds",
        "gauge",
        "How long the card lasts from new at the rate since the start; 0 without disk.card_endurance.",
    ),
    Metric("weft_edge_log_low", "gauge", "1 while less than disk.low_water is left for records."),
    Metric("weft_edge_log_full", "gauge", "1 while there is no room for records: devices get no acknowledgements."),
    Metric(
        "weft_edge_log_failed", "gauge", "1 after a write or sync failed: the node takes nothing in until restarted."
    ),
    Metric("weft_edge_stream_next_seq", "gauge", "Sequence number that the stream's next record gets.", ("stream",)),
    Metric("weft_edge_stream_bytes", "gauge", "Bytes that the stream takes in the log.", ("stream",)),
    Metric(
        "weft_edge_stream_lost_records",
        "gauge",
        "Records under the log's gap notices, by reason, until hubs have the notices.",
        ("stream", "reason"),
    ),
    Metric("weft_edge_stream_durable_end", "gauge", "One past the stream's last record on disk.", ("stream",)),
    Metric("weft_edge_link_connected", "gauge", "1 while the link to the hub is open.", ("link",)),
    Metric("weft_edge_link_pending_records", "gauge", "Records that the hub has not acknowledged.", ("link",)),
    Metric("weft_edge_link_pending_seconds", "gauge", "Age of the oldest record not acknowledged.", ("link",)),
    Metric("weft_edge_link_sent_bytes_total", "counter", "Compressed bytes sent to the hub.", ("link",)),
    Metric("weft_edge_link_attempts_failed", "gauge", "Failed attempts to connect, in a row.", ("link",)),
    Metric("weft_edge_clock_synchronised", "gauge", "1 when a time source keeps the wall clock right."),
    Metric("weft_edge_start_time_seconds", "gauge", "When the process started, in seconds since 1970."),
    Metric("weft_edge_build_info", "gauge", "Always 1; its labels say which release runs.", ("version", "python")),
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
    Metric("weft_hub_store_put_latency_seconds", "histogram", "Time in which the store took one chunk."),
    Metric(
        "weft_hub_commit_latency_seconds",
        "histogram",
        "Time from a commit's first batch to its acknowledgements: the longest that edges waited.",
    ),
    Metric("weft_hub_stream_records", "gauge", "Records of the stream in the log.", ("tenant", "stream")),
    Metric(
        "weft_hub_stream_complete_up_to_timestamp_seconds",
        "gauge",
        "Moment up to which all known edges have delivered; 0 while it is not known.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_stream_table_lag_records",
        "gauge",
        "Records in the log that are no table rows yet.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_stream_table_lag_seconds",
        "gauge",
        "How long the oldest record without a table row has waited, as this node saw it.",
        ("tenant", "stream"),
    ),
    Metric("weft_hub_build_info", "gauge", "Always 1; its labels say which release runs.", ("version", "python")),
)
"""What a hub node serves at ``/metrics``. Beyond 500 streams the rest are one, called ``(other)``."""

PROCESS_METRICS = (
    Metric("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM."),
    Metric("process_virtual_memory_bytes", "gauge", "Address space of the process."),
    Metric("process_cpu_seconds_total", "counter", "Processor time of the process."),
    Metric("process_open_fds", "gauge", "Open files and sockets of the process."),
    Metric("process_max_fds", "gauge", "Most files and sockets that the process may open."),
    Metric("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970."),
)
"""What both serve besides, under the names that Prometheus's clients share. Read from ``/proc``."""
