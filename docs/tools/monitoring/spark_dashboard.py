"""The dashboard of Spark: pipelines that report to the hub, and the streams that they read."""

from __future__ import annotations

from docs.tools.monitoring.panel import Row, Variable, dashboard, figure, plot, table

_OF = '{job=~"$job", tenant=~"$tenant", pipeline=~"$pipeline"}'
_WORST = 20

VARIABLES = (
    Variable("job", "label_values(weft_hub_build_info, job)", has_all=True),
    Variable("tenant", 'label_values(weft_hub_pipeline_trouble{job=~"$job"}, tenant)', has_all=True),
    Variable(
        "pipeline", 'label_values(weft_hub_pipeline_trouble{job=~"$job", tenant=~"$tenant"}, pipeline)', has_all=True
    ),
)


def _each(name: str) -> str:
    """Return a figure of each pipeline, which the first process of every host has."""
    return f"max by (tenant, pipeline) (weft_hub_pipeline_{name}{_OF})"


ROWS = (
    Row(
        "Pipelines that report",
        (
            figure("Pipelines", f"count({_each('trouble')})"),
            figure("Failed or silent", f"sum({_each('trouble')})", red_from=1),
            figure("Records a second", f"sum({_each('records_per_second')})", "cps"),
            figure("Records not read", f"sum({_each('lag_records')})"),
        ),
        height=4,
    ),
    Row(
        "Each pipeline",
        (
            plot("Records a second", (_each("records_per_second"), "{{tenant}}/{{pipeline}}"), unit="cps"),
            plot(
                "Records not read",
                (_each("lag_records"), "{{tenant}}/{{pipeline}}"),
                about="Of the log, behind its end. Pipelines whose source does not say it are not here.",
            ),
            plot(
                "Micro-batch",
                (_each("batch_seconds"), "{{tenant}}/{{pipeline}}"),
                unit="s",
                about="Time that the last one took.",
            ),
            plot(
                "Time without records",
                (_each("idle_seconds"), "{{tenant}}/{{pipeline}}"),
                unit="s",
                about="Since the last micro-batch that had some.",
            ),
        ),
        height=9,
    ),
    Row(
        "The pipelines to look at",
        (
            table(
                "Failed or silent",
                f"topk({_WORST}, {_each('trouble')} == 1)",
                about="The console has the last error of each.",
            ),
            table(
                "Longest silent",
                f"topk({_WORST}, min by (tenant, pipeline) (weft_hub_pipeline_seen_seconds{_OF}))",
                "s",
                "Time since the last report.",
            ),
            table("Furthest behind", f"topk({_WORST}, {_each('lag_records')} > 0)"),
        ),
        height=9,
    ),
)


def spark() -> str:
    """Return the dashboard of Spark."""
    about = "Pipelines of Spark that report to a Weft hub (`weft spark run --report`): rate, lag, batches and failures."
    return dashboard("weft-spark", "Weft: Spark", about, VARIABLES, ROWS)
