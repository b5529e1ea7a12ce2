"""The memory of functions is found again by their settings, also by later releases."""

from __future__ import annotations

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import Flow
from weft.edge_node.derived.definitions import Definition, definitions, functions_of

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


def scored(folder: str, python: str = "file: score.py, files: [model.onnx]") -> Definition:
    functions = f"{{python: {{{python}}}}}, {{enrich: {{file: machines.csv, on: line}}}}"
    text = f"{HEAD}  hot: {{from_stream: telemetry, functions: [{functions}]}}\n"
    config = parse(text, f"{folder}/edge.yaml", EdgeConfig).config
    (found,) = definitions(config)
    return found


def test_the_same_functions_have_the_same_origin_in_each_folder_and_on_each_machine() -> None:
    here, there = scored("/etc/weft"), scored("/home/eva/plant")
    assert here.digest == there.digest
    assert not here.works_like(there), "a running node takes over that its files are others"
    assert scored("/etc/weft").works_like(here)
    assert scored("/etc/weft", "file: other.py, files: [model.onnx]").digest != here.digest
    assert scored("/etc/weft", "file: score.py").digest != here.digest


def test_memory_survives_a_move_of_the_configuration() -> None:
    text = f"{HEAD}  hot: {{from_stream: telemetry, functions: [python: score.py]}}\n"
    found = set()
    for folder in ("/etc/weft", "/home/eva"):
        config = parse(text, f"{folder}/edge.yaml", EdgeConfig).config
        found |= {label for label, _ in functions_of(config, Flow(config), "hot")}
    assert len(found) == 1
