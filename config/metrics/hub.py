"""Metrics of a hub."""

from __future__ import annotations

from weft.config.metrics.metric import HUB_TRACE_METRICS, Metric

HUB_METRICS = (
    Metric(
        "weft_hub_conflicts",
        "gauge",
        "Lanes whose log a second node claims to own; their streams stop until an operator decides.",
    ),
    Metric(
        "weft_hub_stopped_tables",
        "gauge",
        "Tables that wait behind records which cannot become rows; `weft hub status` names them.",
    ),
    Metric(
        "weft_hub_iceberg_failing",
        "gauge",
        "Tables whose Iceberg metadata this process cannot update; `weft hub status` names them.",
    ),
    Metric(
        "weft_hub_skipped_records",
        "gauge",
        "Records that operators removed from tables, of the shards of this process.",
    ),
    Metric("weft_hub_links", "gauge", "Edges connected to this node."),
    Metric(
        "weft_hub_edges",
        "gauge",
        "Edges of this node's own shards that are not retired. Sums over all nodes are those of the hub.",
    ),
    Metric(
        "weft_hub_edges_silent",
        "gauge",
        "Of these edges, those of which nothing was heard for that long: 4m, 1h, 1d and 7d, each with the longer ones.",
        ("over",),
    ),
    Metric(
        "weft_hub_edges_in_alarm",
        "gauge",
        "Of these edges, those with a lane that is held back, by reason. `weft hub status` names them.",
        ("reason",),
    ),
    Metric(
        "weft_hub_edges_outage_left_short",
        "gauge",
        "Of these edges, those whose disk lasts less than that without a hub, as they report: 4h and 1d. `linked` "
        "is 0 without a link.",
        ("under", "linked"),
    ),
    Metric(
        "weft_hub_edges_outage_left_unknown",
        "gauge",
        "Of these edges, those that did not report how long their disk lasts, to a process that still runs.",
    ),
    Metric(
        "weft_hub_certificate_expires_timestamp_seconds",
        "gauge",
        "End of the certificate of `tls`, in seconds since 1970; 0 without TLS.",
    ),
    Metric("weft_hub_tls_connections_accepted_total", "counter", "Connections whose TLS handshake began."),
    Metric("weft_hub_tls_connections_half_open", "gauge", "Connections whose TLS handshake is not complete."),
    Metric(
        "weft_hub_tls_half_open_evicted_total", "counter", "Half-open connections closed to make room for newer ones."
    ),
    Metric("weft_hub_tls_handshakes_failed_total", "counter", "TLS handshakes that failed."),
    Metric(
        "weft_hub_tls_connect_timeouts_total", "counter", "Connections closed because their handshake took too long."
    ),
    Metric(
        "weft_hub_tls_connections_rate_limited_total",
        "counter",
        "Connections with TLS refused because their address opened too many.",
    ),
    Metric(
        "weft_hub_tls_accept_pauses_total",
        "counter",
        "Times that the hub stopped accepting connections for a moment: no file descriptor was left.",
    ),
    Metric("weft_hub_tls_reloads_total", "counter", "Successful reloads of certificates."),
    Metric("weft_hub_tls_reload_failures_total", "counter", "Failed reloads: the changed files could not be used."),
    Metric(
        "weft_hub_clock_off_seconds",
        "gauge",
        "Least time by which the node's clock is ahead of the store's (negative: behind); 0 while it is right.",
    ),
    Metric(
        "weft_hub_links_clock_differs",
        "gauge",
        "Connected edges whose synchronised clocks were more than a minute from this node's when they connected.",
    ),
    Metric(
        "weft_hub_cluster_log_entry", "gauge", "Number of the last entry of the cluster log that the process knows."
    ),
    Metric(
        "weft_hub_token_next_end_seconds",
        "gauge",
        "Time until the next declared token ends that has no later secret; +Inf if none ends.",
    ),
    Metric("weft_hub_jwt_keys", "gauge", "Keys of the issuer of JSON Web Tokens (`jwt`) that count."),
    Metric(
        "weft_hub_jwt_keys_failing_seconds",
        "gauge",
        "Time since which the issuer's keys could not be read; 0 after a successful attempt.",
    ),
    Metric("weft_hub_jwt_verified_total", "counter", "Signatures of JSON Web Tokens that were verified."),
    Metric(
        "weft_hub_cluster_log_age_seconds",
        "gauge",
        "Time since the process last saw the end of the cluster log; some seconds while the store answers.",
    ),
    Metric(
        "weft_hub_cluster_log_unusable",
        "gauge",
        "Entries of the cluster log that are damaged or missing, and facts that this release cannot read.",
    ),
    Metric(
        "weft_hub_refusals_total",
        "counter",
        "Refusals of what one edge, tenant or token asked for beyond its share, by setting and owner.",
        ("bound", "owner"),
    ),
    Metric(
        "weft_hub_tenant_bytes_total",
        "counter",
        "Bytes of batches that links of a tenant brought to this process; 100 tenants have series, `(other)` the rest.",
        ("tenant",),
    ),
    Metric("weft_hub_tenant_records_total", "counter", "Records that they brought, repetitions included.", ("tenant",)),
    Metric("weft_hub_tenant_links", "gauge", "Open links of a tenant to this process.", ("tenant",)),
    Metric(
        "weft_hub_tenant_throttled_seconds_total",
        "counter",
        "Time for which links of a tenant were asked to wait, as it was at its quota.",
        ("tenant",),
    ),
    Metric("weft_hub_tenant_refused_total", "counter", "Links and lanes that a quota refused.", ("tenant",)),
    Metric(
        "weft_hub_tenant_table_bytes",
        "gauge",
        "Bytes of the files of a tenant's tables of all rows, looked at each minute; only of tenants with that quota.",
        ("tenant",),
    ),
    Metric(
        "weft_hub_stream_received_bytes_total",
        "counter",
        "Bytes of batches that links of a stream brought to this process: by how much the log grows.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_store_requests_total",
        "counter",
        "Calls of the store: write (PUT), read (GET), list and delete. Attempts and pages are not counted one by one.",
        ("kind",),
    ),
    Metric(
        "weft_hub_store_free_bytes",
        "gauge",
        "Bytes free of the file system of a store in a folder, looked at each minute. None for a bucket.",
    ),
    Metric(
        "weft_hub_backup_age_seconds",
        "gauge",
        "Time since the moment up to which the last complete backup has everything; +Inf if none is known.",
    ),
    Metric(
        "weft_hub_security_events_total",
        "counter",
        "Failed logins, refused requests and used-up shares; the log has a bounded number of them as JSON.",
        ("event",),
    ),
    Metric("weft_hub_chunks_total", "counter", "Chunks written by this node.", ("shard",)),
    Metric("weft_hub_records_total", "counter", "Records in chunks written by this node.", ("shard",)),
    Metric("weft_hub_bytes_total", "counter", "Bytes of chunks written by this node.", ("shard",)),
    Metric("weft_hub_foreign_chunks_total", "counter", "Chunks of other nodes read by this node.", ("shard",)),
    Metric("weft_hub_unclear_total", "counter", "Chunk creations that did not end in a clean success.", ("shard",)),
    Metric("weft_hub_retries_total", "counter", "Waits for a store that did not answer.", ("shard",)),
    Metric("weft_hub_reloads_total", "counter", "Times that the shard's state was loaded again.", ("shard",)),
    Metric("weft_hub_sessions_refused_total", "counter", "Lane sessions refused.", ("shard",)),
    Metric("weft_hub_pending_bytes", "gauge", "Bytes waiting for the store.", ("shard",)),
    Metric("weft_hub_chunk", "gauge", "Number of the newest chunk known; -1 before the first.", ("shard",)),
    Metric("weft_hub_shared_queries_total", "counter", "Queries of tables by Delta Sharing, with `sharing`."),
    Metric(
        "weft_hub_shared_bytes_total",
        "counter",
        "Bytes of table files that this process sent to clients of Delta Sharing, with `sharing`.",
    ),
    Metric("weft_hub_kafka_connections", "gauge", "Connections of Kafka's clients, with `kafka`."),
    Metric("weft_hub_kafka_requests_total", "counter", "Requests of Kafka's clients, with `kafka`."),
    Metric("weft_hub_kafka_sent_bytes_total", "counter", "Bytes that Kafka's clients were sent, with `kafka`."),
    Metric("weft_hub_sql_queries_total", "counter", "Queries in SQL that this process ran, with `sql`."),
    Metric(
        "weft_hub_deleted_chunks_total", "counter", "Old chunks deleted by this node, with `retain_log`.", ("shard",)
    ),
    Metric("weft_hub_watermark", "gauge", "Number below which chunks are deleted, with `retain_log`.", ("shard",)),
    Metric(
        "weft_hub_region_connected",
        "gauge",
        "1 while the link of the shard to another region is up. Of the process that owns the shard.",
        ("region", "shard"),
    ),
    Metric(
        "weft_hub_region_lag_seconds",
        "gauge",
        "Age of the oldest chunk of the shard with records that the region does not have; 0 without one.",
        ("region", "shard"),
    ),
    Metric(
        "weft_hub_region_kept_seconds",
        "gauge",
        "Age up to which the log keeps chunks that the region lacks: `pin`, or a longer `retain_log`. None without it.",
        ("region", "shard"),
    ),
    Metric(
        "weft_hub_region_budget_bytes",
        "gauge",
        "Bytes that the links of all shards and processes to the region may use in a month, with `budget`.",
        ("region",),
    ),
    Metric(
        "weft_hub_region_budget_used_bytes",
        "gauge",
        "Bytes of the month that they have used, as this process knows.",
        ("region",),
    ),
    Metric(
        "weft_hub_region_budget_used_up",
        "gauge",
        "1 while records for the region wait for the next month, since the budget is used up.",
        ("region",),
    ),
    Metric(
        "weft_hub_region_lost_chunks",
        "gauge",
        "Runs of chunks that were deleted before the region had their records.",
        ("region", "shard"),
    ),
    Metric(
        "weft_hub_pipeline_trouble",
        "gauge",
        "1 while a pipeline of Spark that reports to the hub has failed, or is silent without having ended.",
        ("tenant", "pipeline"),
    ),
    Metric("weft_hub_pipeline_seen_seconds", "gauge", "Time since its last report.", ("tenant", "pipeline")),
    Metric(
        "weft_hub_pipeline_lag_records",
        "gauge",
        "Records of the log that a running one has not read; absent if its source does not report it.",
        ("tenant", "pipeline"),
    ),
    Metric(
        "weft_hub_pipeline_records_per_second", "gauge", "Records that a running one reads.", ("tenant", "pipeline")
    ),
    Metric(
        "weft_hub_pipeline_batch_seconds",
        "gauge",
        "Time that the last micro-batch of a running one took.",
        ("tenant", "pipeline"),
    ),
    Metric(
        "weft_hub_pipeline_idle_seconds",
        "gauge",
        "Time since the last micro-batch with records of a running one ended.",
        ("tenant", "pipeline"),
    ),
    Metric("weft_hub_store_trouble", "gauge", "1 while the store does not answer.", ("shard",)),
    Metric("weft_hub_store_put_latency_seconds", "histogram", "Time that the store took to write one chunk."),
    Metric(
        "weft_hub_commit_latency_seconds",
        "histogram",
        "Time from a commit's first batch to its acknowledgements: the longest wait of the edges.",
    ),
    Metric("weft_hub_stream_records", "gauge", "Records of the stream in the log.", ("tenant", "stream")),
    Metric(
        "weft_hub_stream_complete_up_to_timestamp_seconds",
        "gauge",
        "Time up to which all known edges have delivered; 0 while it is unknown. None for streams of the hub's own.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_stream_table_lag_records",
        "gauge",
        "Records in the log that are not yet table rows.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_stream_table_bytes",
        "gauge",
        "Bytes of the files of the stream's table, as of the last look for small ones.",
        ("tenant", "stream"),
    ),
    Metric("weft_hub_stream_table_files", "gauge", "Number of these files.", ("tenant", "stream")),
    Metric(
        "weft_hub_stream_table_lag_seconds",
        "gauge",
        "Time that the oldest record without a table row has waited, as seen by this node.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_quality_alarms", "gauge", "Quality rules in alarm, and fields that vanished, of this node's tables."
    ),
    Metric(
        "weft_hub_quality_rows_total",
        "counter",
        "Rows that were checked by a quality rule, as the stream's table counts them.",
        ("tenant", "stream", "rule"),
    ),
    Metric(
        "weft_hub_quality_failed_rows_total", "counter", "Of these rows, those that fail.", ("tenant", "stream", "rule")
    ),
    Metric(
        "weft_hub_quality_rule_alarm",
        "gauge",
        "1 while more of the last rows fail a quality rule than it tolerates, or the table is not fresh.",
        ("tenant", "stream", "rule"),
    ),
    Metric(
        "weft_hub_quality_rule_unknown",
        "gauge",
        "1 while the state of a quality rule is unknown; `why` in `GET /v1/status` gives the reason.",
        ("tenant", "stream", "rule"),
    ),
    *HUB_TRACE_METRICS,
    Metric(
        "weft_hub_build_info",
        "gauge",
        "Always 1; its labels name the release and the Python version.",
        ("version", "python"),
    ),
)
"""Metrics of a hub node at ``/metrics``. Streams beyond the first 500, or 400 of a tenant, are one: ``(other)``. Of
quality rules, 1,000 have figures, those of streams with alarms first; of pipelines, 500."""
