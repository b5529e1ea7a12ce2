"""The files of ``deploy/monitoring`` and the page of alerts, from their definitions in this folder."""

from __future__ import annotations

from collections.abc import Iterator

from docs.tools.monitoring.alert import reference_rows, rules_file
from docs.tools.monitoring.edge_alerts import EDGE_ALERTS
from docs.tools.monitoring.edge_dashboard import edges
from docs.tools.monitoring.hub_alerts import HUB_ALERTS
from docs.tools.monitoring.hub_dashboard import hubs
from docs.tools.monitoring.link_dashboard import links
from docs.tools.monitoring.spark_dashboard import spark
from docs.tools.monitoring.stream_dashboard import stream
from docs.tools.monitoring.table_dashboard import tables

_COMMENT = "# Written by docs/tools/generate.py from docs/tools/monitoring. Edit the code.\n"


def monitoring_files() -> dict[str, str]:
    """Return file name -> content of every file that is made for Prometheus and Grafana."""
    return {
        "weft-alerts.yaml": rules_file([("weft-edges", EDGE_ALERTS), ("weft-hubs", HUB_ALERTS)], _COMMENT),
        "grafana-edges.json": edges(),
        "grafana-hub.json": hubs(),
        "grafana-links.json": links(),
        "grafana-tables.json": tables(),
        "grafana-spark.json": spark(),
        "grafana-stream.json": stream(),
    }


def alert_rows() -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield the headings of the page of alerts, each with its rows."""
    for title, alerts in (("Edges", EDGE_ALERTS), ("Hubs", HUB_ALERTS)):
        yield title, list(reference_rows(alerts))
