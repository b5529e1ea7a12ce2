"""The memory of functions is found again by their settings, also by later releases."""

from __future__ import annotations

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check import Flow, check
from weft.edge_node.functions.definitions import functions_of

HEAD = "node: a\ndata_dir: /data\nstreams:\n  telemetry: {from: 'plant/{line}/x', payload: json}\n"


def labels(functions: str) -> list[str]:
    text = f"{HEAD}  hot: {{from_stream: telemetry, functions: [{functions}]}}\n"
    config = parse(text, "edge.yaml", EdgeConfig, check).config
    return [label for label, _ in functions_of(config, Flow(config), "hot")]


def test_a_label_never_changes() -> None:
    """A release that says another one for the same settings loses the memory of every node that is upgraded."""
    assert labels("{dedupe: {by: id, within: 10m}}") == ["dedupe-30df6c6eb432"]


def test_a_default_that_is_written_down_and_other_functions_change_no_label() -> None:
    first, second = labels("{where: a}, {deadband: {field: t, delta: 0.2}}")
    assert labels("{deadband: {field: t, delta: 0.2}}") == [second]
    assert labels("{where: b}, {deadband: {field: t, delta: 0.2}}")[1] == second
    assert labels("{deadband: {field: t, delta: 0.3}}") != [second]
    assert labels("{where: a}, {where: a}") == [first, f"{first}-1"]
