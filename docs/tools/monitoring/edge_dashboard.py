"""The dashboard of edges: the fleet, the worst of it, and one edge."""

from __future__ import annotations

from docs.tools.monitoring.panel import Row, Variable, dashboard, figure, plot, table

_FLEET = '{job=~"$job"}'
_ONE = '{job=~"$job", instance="$instance"}'
_RATE = "[$__rate_interval]"
_WORST = 20
"""Rows of a table about a fleet of any size."""

VARIABLES = (
    Variable("job", "label_values(weft_edge_build_info, job)", has_all=True),
    Variable("instance", 'label_values(weft_edge_build_info{job=~"$job"}, instance)'),
)


def _rate(name: str, labels: str = _ONE) -> str:
    return f"rate({name}{labels}{_RATE})"


def _p(share: float, name: str, labels: str = _ONE) -> str:
    return f"histogram_quantile({share}, sum by (le) ({_rate(name + '_bucket', labels)}))"


def _left(labels: str) -> str:
    """Return the time that the log would last without a link, at the rate of the last hour."""
    room = f"weft_edge_log_budget_bytes{labels} - weft_edge_log_unsafe_bytes{labels}"
    return f"({room}) / (rate(weft_edge_log_written_bytes_total{labels}[1h]) > 0)"


FLEET = (
    Row(
        "The fleet",
        (
            figure("Edges that answer", f"count(weft_edge_build_info{_FLEET})"),
            figure("Links down", f"count(weft_edge_link_connected{_FLEET} == 0) or vector(0)", red_from=1),
            figure("Logs low or full", f"count(weft_edge_log_low{_FLEET} == 1) or vector(0)", red_from=1),
            figure(
                "Nothing becomes durable",
                f"count(weft_edge_link_canary_overdue{_FLEET} == 1) or vector(0)",
                red_from=1,
                about="Links whose hub answers while its store accepts nothing.",
            ),
            figure(
                "Functions in trouble", f"count(weft_edge_function_in_trouble{_FLEET} == 1) or vector(0)", red_from=1
            ),
            figure("Clocks not synchronised", f"count(weft_edge_clock_synchronised{_FLEET} == 0) or vector(0)"),
        ),
        height=4,
    ),
    Row(
        "What comes and goes",
        (
            plot(
                "Messages",
                (f"sum({_rate('weft_edge_log_records_total', _FLEET)})", "stored"),
                (f"sum({_rate('weft_edge_publishes_received_total', _FLEET)})", "received by MQTT"),
                unit="cps",
            ),
            plot("Sent to hubs", (f"sum({_rate('weft_edge_link_sent_bytes_total', _FLEET)})", "bytes"), unit="Bps"),
            plot("Releases", (f"count by (version) (weft_edge_build_info{_FLEET})", "{{version}}")),
        ),
    ),
    Row(
        "The edges to look at",
        (
            table(
                "Oldest record that waits",
                f"topk({_WORST}, weft_edge_link_pending_seconds{_FLEET} > 60)",
                "s",
                "Of each link, the 20 that are furthest behind.",
            ),
            table(
                "Outage that the log can hold",
                f"bottomk({_WORST}, {_left(_FLEET)})",
                "s",
                "Time until the log is full if the link were cut now, at the rate of the last hour.",
            ),
            table(
                "Slowest acknowledgements",
                f"topk({_WORST}, histogram_quantile(0.99, sum by (instance, le)"
                f" ({_rate('weft_edge_ack_latency_seconds_bucket', _FLEET)})) > 0)",
                "s",
                "99 of 100 acknowledgements are faster.",
            ),
        ),
        height=9,
    ),
    Row(
        "Losses, refusals and certificates",
        (
            table(
                "Missing records",
                f"topk({_WORST}, weft_edge_stream_lost_records{_FLEET} > 0)",
                about="Records behind gap notices that hubs do not have yet, by reason.",
            ),
            table(
                "Messages that do not fit",
                f"topk({_WORST}, sum by (instance, stream, outcome)"
                f" (increase(weft_edge_schema_misfits_total{_FLEET}[1h])) > 0)",
                about="In the last hour, by what became of them.",
            ),
            table(
                "Certificates that end first",
                f"bottomk({_WORST}, (weft_edge_link_certificate_expires_timestamp_seconds{_FLEET}"
                f" or weft_edge_listener_certificate_expires_timestamp_seconds{_FLEET}) - time())",
                "s",
            ),
        ),
        height=9,
    ),
)

ONE = (
    Row(
        "Edge $instance: links",
        (
            plot(
                "Connected",
                (f"weft_edge_link_connected{_ONE}", "{{link}}"),
                (f"weft_edge_link_held{_ONE}", "{{link}} held by its policy"),
            ),
            plot("Records that wait", (f"weft_edge_link_pending_records{_ONE}", "{{link}}")),
            plot("Oldest record that waits", (f"weft_edge_link_pending_seconds{_ONE}", "{{link}}"), unit="s"),
            plot(
                "Delays to the hub",
                (f"weft_edge_link_ping_seconds{_ONE}", "{{link}} PING"),
                (f"weft_edge_link_delivery_seconds{_ONE}", "{{link}} until acknowledged"),
                unit="s",
            ),
        ),
    ),
    Row(
        "Edge $instance: disk",
        (
            plot(
                "Log",
                (f"weft_edge_log_budget_bytes{_ONE}", "budget"),
                (f"weft_edge_log_bytes{_ONE}", "used"),
                (f"weft_edge_log_unsafe_bytes{_ONE}", "no hub has it"),
                unit="bytes",
            ),
            plot(
                "Acknowledgements",
                (_p(0.5, "weft_edge_ack_latency_seconds"), "half"),
                (_p(0.99, "weft_edge_ack_latency_seconds"), "99 of 100"),
                unit="s",
                about="From a commit's first message until it is on disk.",
            ),
            plot(
                "Write and sync",
                (_p(0.5, "weft_edge_log_sync_latency_seconds"), "half"),
                (_p(0.99, "weft_edge_log_sync_latency_seconds"), "99 of 100"),
                unit="s",
            ),
            plot("Outage that the log can hold", (_left(_ONE), "left"), unit="s"),
        ),
    ),
    Row(
        "Edge $instance: clients",
        (
            plot(
                "Connections", (f"weft_edge_connections{_ONE}", "open"), (f"weft_edge_sessions{_ONE}", "MQTT sessions")
            ),
            plot(
                "Messages",
                (_rate("weft_edge_publishes_received_total"), "MQTT in"),
                (_rate("weft_edge_deliveries_sent_total"), "MQTT out"),
                (_rate("weft_edge_log_records_total"), "stored"),
                unit="cps",
            ),
            plot(
                "Refused",
                (_rate("weft_edge_connections_refused_total"), "connections"),
                (_rate("weft_edge_authentications_refused_total"), "passwords"),
                (_rate("weft_edge_publishes_denied_total"), "messages, by access rules"),
                (_rate("weft_edge_deliveries_dropped_total"), "deliveries to slow subscribers"),
                unit="cps",
            ),
            plot(
                "Queues",
                (f"weft_edge_queue_ready_messages{_ONE}", "ready"),
                (f"weft_edge_queue_unacknowledged_messages{_ONE}", "unacknowledged"),
            ),
        ),
    ),
    Row(
        "Edge $instance: streams and functions",
        (
            plot("Disk by stream", (f"weft_edge_stream_bytes{_ONE}", "{{stream}}"), unit="bytes"),
            plot("Records by stream", (f"deriv(weft_edge_stream_next_seq{_ONE}[5m])", "{{stream}}"), unit="cps"),
            plot("Functions behind by", (f"weft_edge_function_lag_records{_ONE}", "{{stream}}")),
            plot(
                "Rows rejected by functions",
                (_rate("weft_edge_function_rows_rejected_total"), "{{stream}}"),
                unit="cps",
            ),
        ),
    ),
    Row(
        "Edge $instance: process",
        (
            plot("Processor", (_rate("process_cpu_seconds_total"), "cores")),
            plot("Memory", (f"process_resident_memory_bytes{_ONE}", "resident"), unit="bytes"),
            plot("Files", (f"process_open_fds{_ONE}", "open"), (f"process_max_fds{_ONE}", "maximum")),
        ),
    ),
)


def edges() -> str:
    """Return the dashboard of edges."""
    about = "Weft edges: the fleet, the edges to look at, and one edge."
    return dashboard("weft-edges", "Weft: edges", about, VARIABLES, (*FLEET, *ONE))
