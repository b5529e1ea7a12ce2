"""Metrics of a hub."""

from __future__ import annotations

from weft.config.metrics.metric import Metric

HUB_METRICS = (
    Metric(
        "weft_hub_conflicts",
        "gauge",
        "Lanes whose log a second node claims to own; their streams stand still until an operator decides.",
    ),
    Metric(
        "weft_hub_stopped_tables",
        "gauge",
        "Tables that wait behind records which cannot become rows; `weft hub status` names them.",
    ),
    Metric(
        "weft_hub_skipped_records", "gauge", "Records that operators took out of tables, of the shards of this process."
    ),
    Metric("weft_hub_links", "gauge", "Edges connected to this node."),
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
    Metric(
        "weft_hub_deleted_chunks_total",
        "counter",
        "Old chunks deleted by this node, with `retain_log`.",
        ("shard",),
    ),
    Metric("weft_hub_watermark", "gauge", "Number below which chunks are deleted, with `retain_log`.", ("shard",)),
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
        "Time up to which all known edges have delivered; 0 while it is unknown.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_stream_table_lag_records",
        "gauge",
        "Records in the log that are not yet table rows.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_stream_table_lag_seconds",
        "gauge",
        "Time that the oldest record without a table row has waited, as seen by this node.",
        ("tenant", "stream"),
    ),
    Metric(
        "weft_hub_build_info",
        "gauge",
        "Always 1; its labels name the release and the Python version.",
        ("version", "python"),
    ),
)
"""Metrics of a hub node at ``/metrics``. Streams beyond the first 500, or 400 of a tenant, are one: ``(other)``."""
