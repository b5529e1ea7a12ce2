"""Schemas of the charts' values. What a node reads comes from the models: the settings of this release.

A chart then refuses a misspelt setting before anything is installed. The rest of each file is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from weft.config.models import EdgeConfig, HubConfig
from weft.config.schema import schema

CHARTS = Path(__file__).parents[2] / "deploy" / "helm"
_DEFINITIONS = ',\n "$defs": {'
_OF_THE_CHART: dict[str, tuple[type[msgspec.Struct], tuple[str, ...], str | None]] = {
    "weft-hub": (HubConfig, ("listen", "tls", "processes", "advertise", "plain_http"), "^[a-z0-9]+://"),
    "weft-edge": (EdgeConfig, ("data_dir",), None),
}
"""Chart -> the model of the node's file, and the settings that the chart writes: its templates name another way. Last,
the pattern of a store: pods share no folder."""
_DOCUMENTED_ELSEWHERE = ("description", "default", "title", "examples")


def chart_schemas() -> dict[str, str]:
    """Return the path in deploy/helm -> the content of each schema."""
    return {f"{chart}/values.schema.json": _schema(chart, *about) for chart, about in _OF_THE_CHART.items()}


def _schema(chart: str, model: type[msgspec.Struct], written: tuple[str, ...], store: str | None) -> str:
    by_hand = (CHARTS / chart / "values.schema.json").read_text().partition(_DEFINITIONS)[0]
    definitions = {name: _bare(each) for name, each in schema(model)["$defs"].items()}
    node = definitions[model.__name__]
    node["properties"] |= dict.fromkeys(written, True)
    if store is not None:
        node["properties"]["store"] = {"type": "string", "pattern": store}
    node["required"] = [name for name in node["required"] if name not in written]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in definitions.items())
    return f"{by_hand}{_DEFINITIONS}\n{lines}\n }}\n}}\n"


def _bare(node: Any) -> Any:
    """Return a schema without what only people read."""
    if isinstance(node, list):
        return [_bare(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _bare(each) for name, each in value.items()} if key == "properties" else _bare(value)
        for key, value in node.items()
        if key not in _DOCUMENTED_ELSEWHERE
    }
