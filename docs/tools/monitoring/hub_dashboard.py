"""The dashboard of a hub: its nodes and shards, links, streams, tables and quality."""

from __future__ import annotations

from docs.tools.monitoring.panel import Row, Variable, dashboard, figure, plot, table

_HUB = '{job=~"$job"}'
_STREAMS = '{job=~"$job", tenant=~"$tenant"}'
_SILENT = '{job=~"$job", over="4m"}'
_RATE = "[$__rate_interval]"
_WORST = 20

VARIABLES = (
    Variable("job", "label_values(weft_hub_build_info, job)", has_all=True),
    Variable("tenant", 'label_values(weft_hub_stream_records{job=~"$job"}, tenant)', has_all=True),
)


def _p(share: float, name: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({name}_bucket{_HUB}{_RATE})))"


def _sum(name: str, *by: str) -> str:
    over = f" by ({', '.join(by)})" if by else ""
    return f"sum{over} (rate({name}{_HUB}{_RATE}))"


ROWS = (
    Row(
        "The hub",
        (
            figure("Processes that answer", f"count(weft_hub_build_info{_HUB})"),
            figure("Edges linked", f"sum(weft_hub_links{_HUB})"),
            figure("Edges silent", f"sum(weft_hub_edges_silent{_SILENT})", red_from=1),
            figure("Shards without a store", f"sum(weft_hub_store_trouble{_HUB})", red_from=1),
            figure("Conflicts", f"sum(weft_hub_conflicts{_HUB})", red_from=1),
            figure("Stopped tables", f"sum(weft_hub_stopped_tables{_HUB})", red_from=1),
            figure("Quality alarms", f"sum(weft_hub_quality_alarms{_HUB})", red_from=1),
        ),
        height=4,
    ),
    Row(
        "Intake and store",
        (
            plot("Records", (_sum("weft_hub_records_total"), "committed"), unit="cps"),
            plot("Bytes", (_sum("weft_hub_bytes_total"), "in chunks"), unit="Bps"),
            plot("Chunks", (_sum("weft_hub_chunks_total", "shard"), "shard {{shard}}"), unit="cps"),
            plot(
                "Waits for the store",
                (f"sum by (shard) (weft_hub_pending_bytes{_HUB})", "shard {{shard}}"),
                unit="bytes",
            ),
        ),
    ),
    Row(
        "Commits",
        (
            plot(
                "Commit",
                (_p(0.5, "weft_hub_commit_latency_seconds"), "half"),
                (_p(0.99, "weft_hub_commit_latency_seconds"), "99 of 100"),
                unit="s",
                about="From a commit's first batch to its acknowledgements: the wait of edges.",
            ),
            plot(
                "Write to the store",
                (_p(0.5, "weft_hub_store_put_latency_seconds"), "half"),
                (_p(0.99, "weft_hub_store_put_latency_seconds"), "99 of 100"),
                unit="s",
            ),
            plot(
                "Trouble",
                (_sum("weft_hub_retries_total"), "waits for the store"),
                (_sum("weft_hub_unclear_total"), "unclear creations"),
                (_sum("weft_hub_reloads_total"), "shards loaded again"),
                unit="cps",
            ),
            plot(
                "Requests",
                (_sum("weft_hub_store_requests_total", "kind"), "{{kind}}"),
                unit="cps",
                about="Calls of the store, by what it charges for them.",
            ),
            plot(
                "Foreign chunks",
                (_sum("weft_hub_foreign_chunks_total"), "of other nodes"),
                unit="cps",
                about="Chunks that other processes wrote to shards of this one.",
            ),
        ),
    ),
    Row(
        "Links",
        (
            plot("Edges linked", (f"sum by (instance) (weft_hub_links{_HUB})", "{{instance}}")),
            plot("Edges silent", (f"sum by (over) (weft_hub_edges_silent{_HUB})", "{{over}} and longer")),
            plot(
                "Disks that last for few hours",
                (
                    f"sum by (under, linked) (weft_hub_edges_outage_left_short{_HUB})",
                    "under {{under}}, linked {{linked}}",
                ),
                about="Edges, by how long they can continue without a hub.",
            ),
            plot("Edges in alarm", (f"sum by (reason) (weft_hub_edges_in_alarm{_HUB})", "{{reason}}")),
            plot("Sessions refused", (_sum("weft_hub_sessions_refused_total"), "lanes"), unit="cps"),
            plot(
                "Handshakes that failed",
                (_sum("weft_hub_tls_handshakes_failed_total"), "TLS"),
                (_sum("weft_hub_tls_connections_rate_limited_total"), "too many from an address"),
                unit="cps",
            ),
            table(
                "More than a share",
                f"topk({_WORST}, sum by (bound, owner) (increase(weft_hub_refusals_total{_HUB}[1h])) > 0)",
                about="Refusals of the last hour, by setting and owner.",
            ),
        ),
    ),
    Row(
        "Streams",
        (
            table("Largest", f"topk({_WORST}, max by (tenant, stream) (weft_hub_stream_records{_STREAMS}))"),
            table(
                "Growth, bytes a day",
                f"topk({_WORST}, sum by (tenant, stream)"
                f" (86400 * rate(weft_hub_stream_received_bytes_total{_STREAMS}[1h])))",
                "bytes",
            ),
            table(
                "Largest tables, bytes",
                f"topk({_WORST}, max by (tenant, stream) (weft_hub_stream_table_bytes{_STREAMS}))",
                "bytes",
            ),
            table(
                "Busiest, records a second",
                f"topk({_WORST}, max by (tenant, stream) (deriv(weft_hub_stream_records{_STREAMS}[5m])))",
                "cps",
            ),
            table(
                "Furthest from complete",
                f"topk({_WORST}, max by (tenant, stream)"
                f" (time() - (weft_hub_stream_complete_up_to_timestamp_seconds{_STREAMS} > 0)))",
                "s",
                "Time for which an edge is missing. Streams whose end is unknown are not here.",
            ),
            table(
                "Complete up to: unknown",
                f"max by (tenant, stream) (weft_hub_stream_complete_up_to_timestamp_seconds{_STREAMS}) == 0",
            ),
        ),
        height=9,
    ),
    Row(
        "Tables and quality",
        (
            table(
                "Rows behind",
                f"topk({_WORST}, max by (tenant, stream) (weft_hub_stream_table_lag_records{_STREAMS}) > 0)",
            ),
            table(
                "Time behind",
                f"topk({_WORST}, max by (tenant, stream) (weft_hub_stream_table_lag_seconds{_STREAMS}) > 0)",
                "s",
            ),
            table(
                "Quality rules in alarm", f"max by (tenant, stream, rule) (weft_hub_quality_rule_alarm{_STREAMS}) == 1"
            ),
            table(
                "Share of rows that fail",
                f"topk({_WORST}, sum by (tenant, stream, rule)"
                f" (increase(weft_hub_quality_failed_rows_total{_STREAMS}[1h]))"
                " / (sum by (tenant, stream, rule)"
                f" (increase(weft_hub_quality_rows_total{_STREAMS}[1h])) > 0))",
                "percentunit",
                "Of the rows of the last hour.",
            ),
        ),
        height=9,
    ),
    Row(
        "Clocks, declarations and processes",
        (
            plot("Clock ahead of the store's", (f"weft_hub_clock_off_seconds{_HUB}", "{{instance}}"), unit="s"),
            plot("Age of the last backup", (f"min(weft_hub_backup_age_seconds{_HUB} < +Inf)", "age"), unit="s"),
            plot("Free on the store's disk", (f"min(weft_hub_store_free_bytes{_HUB})", "free"), unit="bytes"),
            plot("Age of the cluster log", (f"weft_hub_cluster_log_age_seconds{_HUB}", "{{instance}}"), unit="s"),
            plot("Processor", (f"rate(process_cpu_seconds_total{_HUB}{_RATE})", "{{instance}}")),
            plot("Memory", (f"process_resident_memory_bytes{_HUB}", "{{instance}}"), unit="bytes"),
        ),
    ),
)


def hubs() -> str:
    """Return the dashboard of a hub."""
    about = "A Weft hub: its processes and shards, links, streams, tables and quality."
    return dashboard("weft-hub", "Weft: hub", about, VARIABLES, ROWS)
