"""The dashboard of one stream: its numbers over time, by the hub's own API and the data source Infinity."""

from __future__ import annotations

import json
from typing import Any

from docs.tools.monitoring.panel import COLUMNS, SCHEMA

_TYPE = "yesoreyeram-infinity-datasource"
_SOURCE = {"type": _TYPE, "uid": "$datasource"}
_CHOICES = (
    ("tenant", "Tenant", "default"),
    ("stream", "Stream", "telemetry"),
    ("fields", "Fields of the payload", "celsius"),
    ("key", "Topic filter", "#"),
)


def _asked(path: str, root: str, columns: list[tuple[str, str]], parameters: dict[str, str]) -> dict[str, Any]:
    return {
        "refId": "A",
        "datasource": _SOURCE,
        "type": "json",
        "source": "url",
        "parser": "backend",
        "format": "table",
        "url": path,
        "url_options": {"method": "GET", "params": [{"key": key, "value": value} for key, value in parameters.items()]},
        "root_selector": root,
        "columns": [{"selector": name, "text": name, "type": kind} for name, kind in columns],
    }


def _panel(number: int, title: str, kind: str, place: tuple[int, int, int, int], **more: Any) -> dict[str, Any]:
    x, y, width, height = place
    position = {"x": x, "y": y, "w": width, "h": height}
    return {"id": number, "type": kind, "title": title, "datasource": _SOURCE, "gridPos": position, **more}


def stream() -> str:
    """Return the dashboard as the JSON that Grafana imports."""
    span = {"since": "${__from:date:iso}", "until": "${__to:date:iso}"}
    columns = [("time", "timestamp"), ("edge", "string"), ("key", "string"), ("field", "string"), ("value", "number")]
    rows = _asked(
        "/v1/streams/${stream}/series",
        "rows",
        columns,
        {"tenant": "${tenant}", **span, "fields": "${fields}", "key": "${key}", "step": "${__interval}"},
    )
    moment = _asked("/v1/streams/${stream}", "", [("complete_up_to", "timestamp")], {"tenant": "${tenant}"})
    lines = {
        "fieldConfig": {"defaults": {"custom": {"spanNulls": False, "showPoints": "auto"}}, "overrides": []},
        "transformations": [{"id": "prepareTimeSeries", "options": {"format": "multi"}}],
    }
    document = {
        "uid": "weft-stream",
        "title": "Weft: a stream",
        "description": "Numbers of a stream's payloads over time, and up to when the stream is complete.",
        "tags": ["weft"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Hub", "type": "datasource", "query": _TYPE, "current": {}},
                *(
                    {
                        "name": name,
                        "label": label,
                        "type": "textbox",
                        "query": value,
                        "current": {"text": value, "value": value},
                    }
                    for name, label, value in _CHOICES
                ),
            ]
        },
        "panels": [
            _panel(
                1,
                "Complete up to",
                "stat",
                (0, 0, COLUMNS, 4),
                targets=[moment],
                fieldConfig={"defaults": {"unit": "dateTimeAsIso"}, "overrides": []},
                options={"reduceOptions": {"fields": "/.*/", "calcs": ["lastNotNull"]}},
            ),
            _panel(
                2,
                "${fields} of ${stream}",
                "timeseries",
                (0, 4, COLUMNS, 14),
                targets=[rows],
                description="A gap in a line: records of the edge are missing there.",
                **lines,
            ),
        ],
    }
    return json.dumps(document, indent=1) + "\n"
