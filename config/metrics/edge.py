"""Metrics of an edge node."""

from __future__ import annotations

from weft.config.metrics.metric import EDGE_TRACE_METRICS, Metric

# Metrics of an edge node's HTTP listeners.

HTTP_METRICS = (
    Metric("weft_edge_http_requests_total", "counter", "HTTP requests handled."),
    Metric("weft_edge_http_messages_total", "counter", "Messages in HTTP requests, stored or not."),
    Metric("weft_edge_http_refused_total", "counter", "HTTP requests answered with 400 to 499, without 429."),
    Metric(
        "weft_edge_http_throttled_total",
        "counter",
        "HTTP requests answered with 429: too much waited for the disk, or too many clients read events.",
    ),
    Metric("weft_edge_http_errors_total", "counter", "HTTP requests answered with a status from 500 on."),
    Metric("weft_edge_http_timeouts_total", "counter", "HTTP connections closed because a request arrived too slowly."),
    Metric(
        "weft_edge_http_repeated_total",
        "counter",
        "HTTP requests recognised by their idempotency key: their messages were stored before.",
    ),
    Metric(
        "weft_edge_http_misfits_refused_total",
        "counter",
        "HTTP requests refused because a message does not fit the stream: its topic, or no JSON.",
    ),
    Metric(
        "weft_edge_http_misfits_taken_total",
        "counter",
        "Messages accepted by HTTP although they do not fit the stream (`misfits: take`).",
    ),
    Metric("weft_edge_http_keys", "gauge", "Idempotency keys that are remembered."),
    Metric(
        "weft_edge_http_keys_forgotten_total",
        "counter",
        "Idempotency keys forgotten before their time, because there were too many.",
    ),
    Metric("weft_edge_http_readers", "gauge", "HTTP clients that read events."),
    Metric("weft_edge_http_events_total", "counter", "Events sent to HTTP clients."),
    Metric("weft_edge_http_events_dropped_total", "counter", "Live messages that an HTTP client was too slow for."),
)


# Metrics of a node's pair, of a node that is in one.

PAIR_METRICS = (
    Metric("weft_edge_pair_connected", "gauge", "1 while the peer takes this node's records."),
    Metric("weft_edge_pair_alone", "gauge", "1 while some acknowledged records have one disk (`acks: both`)."),
    Metric("weft_edge_pair_one_disk_records", "gauge", "Durable records that neither the peer nor all hubs have."),
    Metric("weft_edge_pair_copied_bytes_total", "counter", "Compressed bytes sent to the peer."),
    Metric("weft_edge_pair_copy_records", "gauge", "Records of the peer kept here, that hubs are not known to have."),
    Metric("weft_edge_pair_copy_bytes", "gauge", "Disk space of the copies of the peer's log."),
)


# Metrics of queues, of an edge node that has some: totals, since a node may have 65,536 queues.

QUEUE_METRICS = (
    Metric("weft_edge_queues", "gauge", "Queues that clients of AMQP have declared."),
    Metric("weft_edge_queue_exchanges", "gauge", "Exchanges, those that are always there included."),
    Metric("weft_edge_queue_bindings", "gauge", "Bindings, as they count against queues.bindings."),
    Metric("weft_edge_queue_consumers", "gauge", "Consumers of queues."),
    Metric("weft_edge_queue_ready_messages", "gauge", "Messages in queues that wait for a consumer."),
    Metric("weft_edge_queue_unacknowledged_messages", "gauge", "Messages delivered and not acknowledged."),
    Metric("weft_edge_queue_bytes", "gauge", "Size of the messages in queues, as it counts against queues.size."),
    Metric("weft_edge_queue_bytes_max", "gauge", "Size that they may have: queues.size."),
    Metric("weft_edge_queue_published_total", "counter", "Messages enqueued; one in three queues counts three."),
    Metric("weft_edge_queue_delivered_total", "counter", "Messages delivered from queues."),
    Metric("weft_edge_queue_redelivered_total", "counter", "Of these, messages flagged as redelivered."),
    Metric("weft_edge_queue_acknowledged_total", "counter", "Messages acknowledged by consumers."),
    Metric("weft_edge_queue_dead_lettered_total", "counter", "Messages sent on to where a queue has its dead letters."),
    Metric("weft_edge_queue_expired_total", "counter", "Messages whose time to live expired."),
    Metric("weft_edge_queue_dropped_total", "counter", "Messages that left a queue because it was too long."),
    Metric("weft_edge_queue_not_taken_total", "counter", "Messages that a full queue, or a full share, refused."),
    Metric("weft_edge_queue_lost_total", "counter", "Messages in queues that the log had no more."),
)


# Metrics of an edge node's sources, one of each for every source.

_LABELS = ("source",)

SOURCE_METRICS = (
    Metric("weft_edge_source_connected", "gauge", "1 while the source is connected to its broker.", _LABELS),
    Metric("weft_edge_source_messages_total", "counter", "Messages received from the broker.", _LABELS),
    Metric("weft_edge_source_received_bytes_total", "counter", "Payload bytes of these messages.", _LABELS),
    Metric(
        "weft_edge_source_acknowledged_total",
        "counter",
        "Messages acknowledged to the broker, each after it was on disk.",
        _LABELS,
    ),
    Metric("weft_edge_source_unacknowledged_messages", "gauge", "Messages that wait for the disk.", _LABELS),
    Metric("weft_edge_source_duplicates_total", "counter", "Messages flagged as suspected duplicates.", _LABELS),
    Metric("weft_edge_source_refused_total", "counter", "Messages that cannot be stored and are not kept.", _LABELS),
    Metric("weft_edge_source_attempts_failed", "gauge", "Consecutive failed attempts to connect.", _LABELS),
    Metric(
        "weft_edge_source_waiting_messages", "gauge", "Messages that wait at the broker, if it reports them.", _LABELS
    ),
    Metric(
        "weft_edge_source_connected_since_timestamp_seconds",
        "gauge",
        "Time at which the source was connected, in seconds since 1970; absent while it is not.",
        _LABELS,
    ),
    Metric("weft_edge_source_values_total", "counter", "Values taken from a server, or read from devices.", _LABELS),
    Metric(
        "weft_edge_source_values_per_second", "gauge", "The same a second, in the last ten to twenty seconds.", _LABELS
    ),
    Metric(
        "weft_edge_source_lag_seconds",
        "gauge",
        "Time since the source time of the newest value; absent where one of the clocks cannot be trusted. It grows "
        "while nothing changes, too.",
        _LABELS,
    ),
    Metric("weft_edge_source_requests_total", "counter", "Requests to devices.", _LABELS),
    Metric("weft_edge_source_exceptions_total", "counter", "Answers of devices that refuse a request.", _LABELS),
    Metric("weft_edge_source_timeouts_total", "counter", "Requests without an answer in time.", _LABELS),
    Metric(
        "weft_edge_source_bad_answers_total",
        "counter",
        "Answers that do not fit their request, or that arrived late.",
        _LABELS,
    ),
    Metric("weft_edge_source_missed_polls_total", "counter", "Polls that were missed; gaps name each.", _LABELS),
    Metric("weft_edge_source_open_gaps", "gauge", "Devices and registers whose values are missing now.", _LABELS),
    Metric("weft_edge_source_gaps_total", "counter", "Gap notices of a server whose values may be lost.", _LABELS),
    Metric(
        "weft_edge_source_overflows_total",
        "counter",
        "Values before which the server dropped others, its queue being full.",
        _LABELS,
    ),
    Metric("weft_edge_source_bad_values_total", "counter", "Values with a status that is not good.", _LABELS),
    Metric("weft_edge_source_nodes", "gauge", "Variables of a server that are monitored.", _LABELS),
    Metric("weft_edge_source_nodes_missing", "gauge", "Nodes of the settings that the server does not have.", _LABELS),
)


EDGE_METRICS = (
    Metric("weft_edge_connections", "gauge", "Open connections of clients, of all protocols."),
    Metric("weft_edge_connections_accepted_total", "counter", "Connections of clients accepted."),
    Metric(
        "weft_edge_connections_refused_total",
        "counter",
        "Clients refused because limits.connections, or one user's share of it, was reached.",
    ),
    Metric(
        "weft_edge_connections_rate_limited_total",
        "counter",
        "Connections closed at once: too many or too often from one address.",
    ),
    Metric(
        "weft_edge_connections_half_open",
        "gauge",
        "Connections whose TLS handshake, CONNECT or password check is not complete.",
    ),
    Metric("weft_edge_half_open_evicted_total", "counter", "Half-open connections closed to make room for newer ones."),
    Metric("weft_edge_handshakes_failed_total", "counter", "TLS handshakes and WebSocket upgrades that failed."),
    Metric(
        "weft_edge_proxy_headers_refused_total",
        "counter",
        "Connections without a valid PROXY header, or not from a trusted proxy.",
    ),
    Metric(
        "weft_edge_accept_pauses_total",
        "counter",
        "Pauses in accepting connections because no file descriptor was left.",
    ),
    Metric("weft_edge_authentications_refused_total", "counter", "Clients refused because they failed authentication."),
    Metric(
        "weft_edge_authentications_turned_away_total",
        "counter",
        "Clients refused because limits.authentications was reached; they count as refused by authentication as well.",
    ),
    Metric("weft_edge_authentications_waiting", "gauge", "Passwords waiting to be checked."),
    Metric("weft_edge_reloads_total", "counter", "Successful reloads of users, access rules and certificates."),
    Metric("weft_edge_reload_failures_total", "counter", "Failed reloads: the changed file could not be used."),
    Metric("weft_edge_connect_timeouts_total", "counter", "Connections closed because they sent no CONNECT in time."),
    Metric(
        "weft_edge_keep_alive_timeouts_total",
        "counter",
        "Clients disconnected because they were silent for longer than their keep alive allows.",
    ),
    Metric(
        "weft_edge_write_timeouts_total",
        "counter",
        "Clients disconnected because they did not read the data sent to them.",
    ),
    Metric("weft_edge_protocol_errors_total", "counter", "Connections closed because the client broke the protocol."),
    Metric(
        "weft_edge_takeovers_total", "counter", "Connections closed because their client identifier connected again."
    ),
    Metric(
        "weft_edge_clients_expelled_total",
        "counter",
        "Connections closed because their user was removed or got another password.",
    ),
    Metric("weft_edge_sessions", "gauge", "MQTT sessions kept in memory, connected or not."),
    Metric("weft_edge_sessions_evicted_total", "counter", "Sessions deleted to make room for newer ones."),
    Metric(
        "weft_edge_sessions_expired_total",
        "counter",
        "Sessions deleted because their session expiry interval had passed.",
    ),
    Metric(
        "weft_edge_sessions_refused_total", "counter", "Clients refused because limits.sessions clients were connected."
    ),
    Metric(
        "weft_edge_sessions_behind_total", "counter", "Times that a session fell behind and began to read from the log."
    ),
    Metric("weft_edge_sessions_saved_total", "counter", "Session records written to the database."),
    Metric("weft_edge_journal_bytes", "gauge", "Bytes of session changes in the log that are not yet in the database."),
    Metric("weft_edge_journal_refused_total", "counter", "Session changes refused because state.journal was reached."),
    Metric("weft_edge_database_failures_total", "counter", "Failed transactions of the session database."),
    Metric("weft_edge_subscriptions", "gauge", "Subscriptions of all sessions."),
    Metric(
        "weft_edge_subscriptions_refused_total",
        "counter",
        "Subscriptions refused because of a limit or an access rule.",
    ),
    Metric("weft_edge_retained", "gauge", "Retained messages."),
    Metric("weft_edge_retained_bytes", "gauge", "Memory used by retained messages."),
    Metric("weft_edge_retained_refused_total", "counter", "Retained messages dropped because a limit was reached."),
    Metric("weft_edge_retained_expired_total", "counter", "Retained messages deleted because their expiry had passed."),
    Metric(
        "weft_edge_retained_evicted_total",
        "counter",
        "Retained messages of the user that had most, deleted to make room for those of others.",
    ),
    Metric("weft_edge_packets_received_total", "counter", "MQTT packets received."),
    Metric("weft_edge_bytes_received_total", "counter", "Bytes of all packets read from MQTT clients."),
    Metric("weft_edge_bytes_sent_total", "counter", "Bytes of all packets written to MQTT clients."),
    Metric("weft_edge_publishes_denied_total", "counter", "Messages refused by access rules and not stored."),
    Metric(
        "weft_edge_publishes_resent_total",
        "counter",
        "Resent messages that were already in the log and not stored again.",
    ),
    Metric("weft_edge_resent_recognised_total", "counter", "Resent messages that were already in the log."),
    Metric("weft_edge_resent_remembered", "gauge", "Messages that the node would recognise if they were sent again."),
    Metric(
        "weft_edge_resent_forgotten_total",
        "counter",
        "Messages that the node no longer recognises because state.resent_total was reached.",
    ),
    Metric("weft_edge_publishes_received_total", "counter", "Messages received, QoS 2 repetitions not included."),
    Metric(
        "weft_edge_publishes_repeated_total", "counter", "QoS 2 messages received again: acknowledged and not stored."
    ),
    Metric(
        "weft_edge_publishes_unrouted_total", "counter", "Messages that no stream matches; see the setting unrouted."
    ),
    Metric(
        "weft_edge_schema_checked_total", "counter", "Messages checked against the schema of a stream.", ("stream",)
    ),
    Metric(
        "weft_edge_schema_unchecked_total",
        "counter",
        "Messages stored without a check, because they have more than 24 KiB.",
        ("stream",),
    ),
    Metric(
        "weft_edge_schema_misfits_total",
        "counter",
        "Messages that did not fit the schema of a stream, by what became of them: accepted, dead_lettered or refused.",
        ("stream", "outcome"),
    ),
    Metric("weft_edge_publish_bytes_received_total", "counter", "Payload bytes received."),
    Metric("weft_edge_amqp_channels", "gauge", "Open channels of AMQP 0-9-1."),
    Metric("weft_edge_amqp_channel_errors_total", "counter", "AMQP channels closed with an exception."),
    Metric("weft_edge_amqp_connection_errors_total", "counter", "AMQP connections closed with an exception."),
    Metric("weft_edge_amqp_returned_total", "counter", "Mandatory AMQP messages returned because no queue matches."),
    Metric("weft_edge_amqp_nacked_total", "counter", "AMQP messages nacked because the log or a queue refused them."),
    Metric("weft_edge_amqp_transactions_total", "counter", "AMQP transactions committed."),
    Metric(
        "weft_edge_amqp_blocked_total", "counter", "Times that the node notified an AMQP client that it is blocked."
    ),
    Metric("weft_edge_wills_published_total", "counter", "Wills published."),
    Metric("weft_edge_wills_refused_total", "counter", "Clients refused because limits.wills was reached."),
    Metric("weft_edge_wills_waiting", "gauge", "Wills that are due and waiting for the disk or for room in the log."),
    Metric("weft_edge_will_bytes", "gauge", "Memory used by wills."),
    Metric("weft_edge_acks_sent_total", "counter", "Acknowledgements sent, each after its record was on disk."),
    Metric(
        "weft_edge_log_refusals_total", "counter", "Reads from clients refused because the log was full or had failed."
    ),
    Metric(
        "weft_edge_backpressure_pauses_total", "counter", "Pauses in reading from a client while the disk caught up."
    ),
    Metric(
        "weft_edge_receive_maximum_pauses_total",
        "counter",
        "Pauses in reading from a client that exceeded its receive maximum.",
    ),
    Metric("weft_edge_deliveries_sent_total", "counter", "Messages sent to local subscribers."),
    Metric(
        "weft_edge_deliveries_dropped_total",
        "counter",
        "Messages dropped because a slow or absent subscriber had no room for them.",
    ),
    Metric(
        "weft_edge_deliveries_too_large_total",
        "counter",
        "Messages not sent because they exceed the subscriber's maximum packet size.",
    ),
    Metric("weft_edge_deliveries_lost_total", "counter", "Messages deleted from the log before a session read them."),
    Metric("weft_edge_messages_expired_total", "counter", "Messages not sent because their expiry had passed."),
    Metric("weft_edge_backlog_pages_total", "counter", "Pages read from the log for sessions that are behind."),
    Metric("weft_edge_backlog_disk_reads_total", "counter", "Reads of the disk for sessions that are behind."),
    Metric("weft_edge_backlog_waits_total", "counter", "Reads that waited because state.backlog_reads was reached."),
    Metric(
        "weft_edge_backlog_evicted_total",
        "counter",
        "Batches dropped from memory because state.backlog_buffer was reached.",
    ),
    Metric(
        "weft_edge_backlog_buffer_bytes",
        "gauge",
        "Memory used by batches that were decoded for sessions that are behind.",
    ),
    Metric("weft_edge_backlog_lost_total", "counter", "Records deleted from the log before sessions read them."),
    Metric("weft_edge_topics_abandoned_total", "counter", "Unrouted messages deleted before a session received them."),
    Metric("weft_edge_log_bytes", "gauge", "Disk space used by the log."),
    Metric("weft_edge_log_budget_bytes", "gauge", "Maximum disk space of the log."),
    Metric("weft_edge_log_segments", "gauge", "Files of the log."),
    Metric("weft_edge_log_pending_bytes", "gauge", "Bytes received and waiting for the disk."),
    Metric("weft_edge_log_records_total", "counter", "Records written durably."),
    Metric("weft_edge_log_commits_total", "counter", "Commits: each is one write and one sync."),
    Metric("weft_edge_log_written_bytes_total", "counter", "Bytes written to the log."),
    Metric("weft_edge_log_sync_seconds_total", "counter", "Seconds spent waiting for the disk to sync."),
    Metric("weft_edge_log_sync_latency_seconds", "histogram", "Time of one write and sync of the log."),
    Metric(
        "weft_edge_ack_latency_seconds",
        "histogram",
        "Time from a commit's first message until it is on disk: the longest wait of its acknowledgements.",
    ),
    Metric(
        "weft_edge_log_unsafe_bytes",
        "gauge",
        "Bytes of the log that cannot be deleted: no hub has them, or retention keeps them.",
    ),
    Metric("weft_edge_log_device_written_bytes_total", "counter", "Bytes written to the disk, in whole 4 KiB pages."),
    Metric("weft_edge_log_payload_bytes_total", "counter", "Payload bytes written durably."),
    Metric("weft_edge_log_moved_bytes_total", "counter", "Bytes of records copied into newer files of the log."),
    Metric(
        "weft_edge_log_write_amplification",
        "gauge",
        "Bytes written to the disk per payload byte; 0 before the first payload.",
    ),
    Metric(
        "weft_edge_log_card_lifetime_seconds",
        "gauge",
        "Lifetime of a new card at the rate since the start; 0 without disk.card_endurance.",
    ),
    Metric("weft_edge_log_low", "gauge", "1 while less than disk.low_water is free for records."),
    Metric(
        "weft_edge_down_messages_total",
        "counter",
        "Messages from the hub by what became of them: published, expired or refused.",
        ("link", "outcome"),
    ),
    Metric("weft_edge_down_waiting", "gauge", "Messages from the hub for which the log has no room.", ("link",)),
    Metric(
        "weft_edge_conflict",
        "gauge",
        "1 while a hub refuses the node because another copy of its log has taken over; devices get no "
        "acknowledgements.",
    ),
    Metric("weft_edge_log_full", "gauge", "1 while there is no room for records; devices get no acknowledgements."),
    Metric(
        "weft_edge_log_failed",
        "gauge",
        "1 after a write or sync failed; the node accepts no records until it is restarted.",
    ),
    Metric("weft_edge_stream_next_seq", "gauge", "Sequence number of the stream's next record.", ("stream",)),
    Metric("weft_edge_stream_bytes", "gauge", "Disk space used by the stream in the log.", ("stream",)),
    Metric(
        "weft_edge_stream_lost_records",
        "gauge",
        "Records covered by gap notices in the log, by reason, until hubs have the notices.",
        ("stream", "reason"),
    ),
    Metric(
        "weft_edge_stream_durable_end", "gauge", "Sequence number after the stream's last record on disk.", ("stream",)
    ),
    Metric(
        "weft_edge_refusals_total",
        "counter",
        "Refusals of what one user, or one address, asked for beyond a bound, by bound and owner. A bound is a setting "
        "such as limits.wills, or an owner's share of it: limits.user_share of limits.wills.",
        ("bound", "owner"),
    ),
    Metric("weft_edge_link_connected", "gauge", "1 while the link to the hub is open.", ("link",)),
    Metric(
        "weft_edge_link_alarm",
        "gauge",
        "1 while the hub lacks records that it had acknowledged, until an operator acknowledges that.",
        ("link",),
    ),
    Metric("weft_edge_link_pending_records", "gauge", "Records that the hub has not yet acknowledged.", ("link",)),
    Metric(
        "weft_edge_link_pending_seconds",
        "gauge",
        "Age of the oldest record that the hub has not yet acknowledged.",
        ("link",),
    ),
    Metric(
        "weft_edge_link_pending_bytes",
        "gauge",
        "Approximate bytes of these records on the wire; absent until enough were sent to know.",
        ("link",),
    ),
    Metric(
        "weft_edge_link_drain_seconds",
        "gauge",
        "Time until the hub has these records, at the rate of the last minute; absent where they do not become fewer.",
        ("link",),
    ),
    Metric(
        "weft_edge_link_delivery_seconds",
        "gauge",
        "Time from a record's arrival in the log to the hub's acknowledgement, of a record acknowledged lately.",
        ("link",),
    ),
    Metric("weft_edge_link_ping_seconds", "gauge", "Round trip of the last PING to the hub.", ("link",)),
    Metric(
        "weft_edge_link_canary_seconds",
        "gauge",
        "Time to the hub's store and back, of the newest frame known to be durable there. Absent before the first.",
        ("link",),
    ),
    Metric(
        "weft_edge_link_canary_timestamp_seconds",
        "gauge",
        "Time at which that frame was sent, in seconds since 1970.",
        ("link",),
    ),
    Metric(
        "weft_edge_link_canary_overdue",
        "gauge",
        "1 while the hub answers PINGs and nothing that was sent becomes durable in its store.",
        ("link",),
    ),
    Metric("weft_edge_link_paused", "gauge", "1 while an operator lets the link's data wait.", ("link",)),
    Metric(
        "weft_edge_link_held",
        "gauge",
        "1 while data waits by the link's policy: paused, budget, every, or a schedule.",
        ("link",),
    ),
    Metric("weft_edge_link_budget_bytes", "gauge", "Monthly budget of the link.", ("link",)),
    Metric("weft_edge_link_budget_used_bytes", "gauge", "Bytes of this month on the wire.", ("link",)),
    Metric("weft_edge_link_sent_bytes_total", "counter", "Compressed bytes sent to the hub.", ("link",)),
    Metric("weft_edge_link_attempts_failed", "gauge", "Consecutive failed attempts to connect.", ("link",)),
    Metric(
        "weft_edge_link_certificate_expires_timestamp_seconds",
        "gauge",
        "End of the certificate that the link shows to the hub, in seconds since 1970.",
        ("link",),
    ),
    Metric(
        "weft_edge_listener_certificate_expires_timestamp_seconds",
        "gauge",
        "End of the listener's certificate, in seconds since 1970.",
        ("listener",),
    ),
    *SOURCE_METRICS,
    *QUEUE_METRICS,
    *PAIR_METRICS,
    Metric(
        "weft_edge_function_rows_in_total", "counter", "Rows that the functions of a stream have read.", ("stream",)
    ),
    Metric("weft_edge_function_rows_out_total", "counter", "Rows that they wrote to the stream.", ("stream",)),
    Metric(
        "weft_edge_function_rows_rejected_total",
        "counter",
        "Rows that they could do nothing with: in the stream of errors, with a reason.",
        ("stream",),
    ),
    Metric("weft_edge_function_rows_routed_total", "counter", "Rows that they wrote to other streams.", ("stream",)),
    Metric("weft_edge_function_alerts_total", "counter", "Messages that they published.", ("stream",)),
    Metric("weft_edge_function_gaps_total", "counter", "Stretches of missing records in what they read.", ("stream",)),
    Metric("weft_edge_function_in_bytes_total", "counter", "Payload bytes that they have read.", ("stream",)),
    Metric(
        "weft_edge_function_out_bytes_total", "counter", "Payload bytes that they wrote to the stream.", ("stream",)
    ),
    Metric(
        "weft_edge_function_failures_total",
        "counter",
        "Times that an error made them start again from what is durable.",
        ("stream",),
    ),
    Metric("weft_edge_function_lag_records", "gauge", "Records that they have not read.", ("stream",)),
    Metric(
        "weft_edge_function_lag_seconds",
        "gauge",
        "Age of the moment up to which the stream has all that will come; an open window holds it back.",
        ("stream",),
    ),
    Metric(
        "weft_edge_function_state_bytes",
        "gauge",
        "Bytes in the log of what they remember: the last copy, and the changes since.",
        ("stream",),
    ),
    Metric(
        "weft_edge_function_in_trouble",
        "gauge",
        "1 while they cannot continue; the status gives the reason.",
        ("stream",),
    ),
    Metric(
        "weft_edge_function_version_refused",
        "gauge",
        "1 while they continue with former settings or files, as the newer ones fail; the status gives the reason.",
        ("stream",),
    ),
    Metric(
        "weft_edge_function_info", "gauge", "Always 1; its label names the version that runs.", ("stream", "version")
    ),
    *HTTP_METRICS,
    *EDGE_TRACE_METRICS,
    Metric("weft_edge_clock_synchronised", "gauge", "1 while a time source keeps the wall clock synchronised."),
    Metric("weft_edge_start_time_seconds", "gauge", "Start time of the process, in seconds since 1970."),
    Metric(
        "weft_edge_build_info",
        "gauge",
        "Always 1; its labels name the release and the Python version.",
        ("version", "python"),
    ),
)
"""Metrics of an edge node at ``/metrics``."""
