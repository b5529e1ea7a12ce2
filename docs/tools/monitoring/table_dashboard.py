"""The dashboard of tables: how far they are, how large, what stops them, and the quality of their rows."""

from __future__ import annotations

from docs.tools.monitoring.panel import Row, Variable, dashboard, figure, plot, table

_HUB = '{job=~"$job"}'
_OF = '{job=~"$job", tenant=~"$tenant", stream=~"$stream"}'
_WORST = 20

VARIABLES = (
    Variable("job", "label_values(weft_hub_build_info, job)", has_all=True),
    Variable("tenant", 'label_values(weft_hub_stream_records{job=~"$job"}, tenant)', has_all=True),
    Variable("stream", 'label_values(weft_hub_stream_records{job=~"$job", tenant=~"$tenant"}, stream)', has_all=True),
)


def _each(name: str) -> str:
    """Return a figure of each stream, which the first process of every host has."""
    return f"max by (tenant, stream) ({name}{_OF})"


ROWS = (
    Row(
        "All tables",
        (
            figure("Tables", f"count({_each('weft_hub_stream_table_files')})"),
            figure(
                "Stopped",
                f"sum(weft_hub_stopped_tables{_HUB})",
                red_from=1,
                about="Tables that wait behind records which cannot become rows.",
            ),
            figure("Records taken out", f"sum(weft_hub_skipped_records{_HUB})", about="By operators."),
            figure("Bytes", f"sum({_each('weft_hub_stream_table_bytes')})", "bytes"),
            figure("Files", f"sum({_each('weft_hub_stream_table_files')})"),
            figure("Quality alarms", f"sum(weft_hub_quality_alarms{_HUB})", red_from=1),
        ),
        height=4,
    ),
    Row(
        "How far they are",
        (
            plot(
                "Records without a row",
                (f"topk({_WORST}, {_each('weft_hub_stream_table_lag_records')})", "{{tenant}}/{{stream}}"),
            ),
            plot(
                "Oldest record without a row",
                (f"topk({_WORST}, {_each('weft_hub_stream_table_lag_seconds')})", "{{tenant}}/{{stream}}"),
                unit="s",
            ),
            plot(
                "Rows a second",
                (
                    f"topk({_WORST}, max by (tenant, stream) (deriv(weft_hub_stream_records{_OF}[5m])"
                    f" - deriv(weft_hub_stream_table_lag_records{_OF}[5m])))",
                    "{{tenant}}/{{stream}}",
                ),
                unit="cps",
            ),
        ),
        height=9,
    ),
    Row(
        "How large they are",
        (
            table("Largest", f"topk({_WORST}, {_each('weft_hub_stream_table_bytes')})", "bytes"),
            table("Most files", f"topk({_WORST}, {_each('weft_hub_stream_table_files')})"),
            table(
                "Smallest files",
                f"bottomk({_WORST}, {_each('weft_hub_stream_table_bytes')}"
                f" / ({_each('weft_hub_stream_table_files')} > 1))",
                "bytes",
                "Mean size of a file. Small ones are joined as more come.",
            ),
            table(
                "Growth in a day",
                f"topk({_WORST}, max by (tenant, stream) (86400 * deriv(weft_hub_stream_table_bytes{_OF}[1h])))",
                "bytes",
            ),
        ),
        height=9,
    ),
    Row(
        "Rows as they should be",
        (
            table("Quality rules in alarm", f"max by (tenant, stream, rule) (weft_hub_quality_rule_alarm{_OF}) == 1"),
            table(
                "Quality rules whose state is unknown",
                f"max by (tenant, stream, rule) (weft_hub_quality_rule_unknown{_OF}) == 1",
            ),
            plot(
                "Rows that fail",
                (
                    f"sum by (tenant, stream, rule) (rate(weft_hub_quality_failed_rows_total{_OF}[$__rate_interval]))",
                    "{{tenant}}/{{stream}} {{rule}}",
                ),
                unit="cps",
            ),
        ),
        height=9,
    ),
)


def tables() -> str:
    """Return the dashboard of tables."""
    about = "Weft tables: how far they are, how large, what stops them, and the quality of their rows."
    return dashboard("weft-tables", "Weft: tables", about, VARIABLES, ROWS)
