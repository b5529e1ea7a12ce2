"""A Grafana dashboard from rows of panels. JSON of Grafana is long; what a panel asks is a line or two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

COLUMNS = 24
"""Width of a dashboard in Grafana's own grid."""
SCHEMA = 39
"""Version of the layout: Grafana 10.2 and later read it, and later ones convert it."""
_SOURCE = {"type": "prometheus", "uid": "$datasource"}
_TABLE_COLUMNS_HIDDEN = ("Time", "__name__", "job")


class Query(NamedTuple):
    """One expression of a panel."""

    expression: str
    legend: str = "__auto"


class Panel(NamedTuple):
    """Panel with its expressions.

    A ``table`` shows the newest value of each series, with its labels as columns.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    about: str = ""
    """Explanation of the figure, which Grafana shows beside the title."""
    alarm_from: float | None = None
    """Value from which on it is red."""


class Row(NamedTuple):
    """Panels beside each other, under a heading."""

    title: str
    panels: tuple[Panel, ...]
    height: int = 7


class Variable(NamedTuple):
    """Choice at the head of a dashboard, over the values of a label."""

    name: str
    values_of: str
    """``label_values(...)``."""
    has_all: bool = False


def plot(title: str, *queries: tuple[str, str], unit: str = "short", about: str = "") -> Panel:
    """Return a panel of curves; each query is an expression and its legend."""
    return Panel(title, tuple(Query(*each) for each in queries), unit, about=about)


def figure(
    title: str, expression: str, unit: str = "short", *, red_from: float | None = None, about: str = ""
) -> Panel:
    """Return a panel with one number."""
    return Panel(title, (Query(expression),), unit, "stat", about, red_from)


def table(title: str, expression: str, unit: str = "short", about: str = "") -> Panel:
    """Return a panel with a row for each series that the expression has now."""
    return Panel(title, (Query(expression),), unit, "table", about)


def dashboard(uid: str, title: str, about: str, variables: Sequence[Variable], rows: Sequence[Row]) -> str:
    """Return the dashboard as the JSON that Grafana imports. The user chooses the data source when looking at it."""
    document = {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["weft"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables(variables))},
        "panels": list(_placed(rows)),
    }
    return json.dumps(document, indent=1) + "\n"


def _variables(variables: Sequence[Variable]) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}
    for each in variables:
        yield {
            "name": each.name,
            "type": "query",
            "datasource": _SOURCE,
            "definition": each.values_of,
            "query": {"query": each.values_of, "refId": each.name},
            "refresh": 2,
            "sort": 1,
            "includeAll": each.has_all,
            "multi": each.has_all,
            **({"allValue": ".*"} if each.has_all else {}),
            "current": {"text": "All", "value": "$__all"} if each.has_all else {},
        }


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        width = COLUMNS // len(row.panels)
        for place, panel in enumerate(row.panels):
            number += 1
            position = {"x": place * width, "y": top, "w": width, "h": row.height}
            yield {"id": number, "gridPos": position, **_panel(panel)}
        top += row.height


def _panel(panel: Panel) -> dict[str, Any]:
    is_table = panel.kind == "table"
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm_from is not None:
        steps.append({"color": "red", "value": panel.alarm_from})
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        defaults |= {"min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [_target(chr(ord("A") + place), query, is_table) for place, query in enumerate(panel.queries)],
        "options": _OPTIONS[panel.kind],
    }
    if is_table:
        hidden = dict.fromkeys(_TABLE_COLUMNS_HIDDEN, True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def _target(reference: str, query: Query, is_table: bool) -> dict[str, Any]:
    form = {"format": "table", "instant": True, "range": False} if is_table else {"format": "time_series"}
    return {"refId": reference, "datasource": _SOURCE, "expr": query.expression, "legendFormat": query.legend, **form}


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"},
    "table": {"showHeader": True, "cellHeight": "sm"},
}
