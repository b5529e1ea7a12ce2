"""Code is cut where its subjects part: no class in halves, no module for a few lines of its one reader, and a name for
one thing."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tests.architecture.house import edges, modules, nodes
from tests.architecture.test_contracts import Class, classes

HALVES = {
    "cloud_hub.openapi.common.OpenGapView": "the type of members of another answer; types are decoded, and never made",
    "cloud_hub.openapi.streams.StreamOf": "likewise",
    "config.payload_schema.model.PayloadSchema": "the schemas of pipelines and hubs, which are decoded, and never made",
    "storage.segment_log.read.answers.LogAnswers": "what readers on other threads ask of the log, on its one lock",
    "storage.segment_log.room.log_room.LogRoom": "likewise what decides about room",
}
"""Base that only one class has, and that nothing makes -> why it is no half of that class."""
SMALL_LINES = 50
SMALL_MAX = 42
"""Modules of fewer lines with one importer that there are. A new one is a section of its importer; the number only
becomes smaller."""
NAME_MAX = 2
"""Classes that may have one name."""


def halves(found: Iterable[Class], called: set[str]) -> list[str]:
    """Bases that one class has, that nothing makes, and that are no contract."""
    found = list(found)
    subclasses: dict[str, list[str]] = defaultdict(list)
    for each in found:
        for base in each.bases:
            subclasses[base].append(each.name)
    known = {f"{each.module}.{each.name}": each for each in found}
    return [
        name
        for name, heirs in subclasses.items()
        if len(heirs) == 1 and name in known and not known[name].is_contract and known[name].name not in called
    ]


def made() -> set[str]:
    """Names that are called somewhere: of classes, those of which there are objects."""
    return {
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for path in modules().values()
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    }


def test_no_class_is_cut_in_halves() -> None:
    assert [name for name in halves(classes(), made()) if name not in HALVES] == []


def test_a_half_is_found() -> None:
    two = [Class("a", "Base", frozenset(), ()), Class("b", "Heir", frozenset(), ("a.Base",))]
    assert halves(two, {"Heir"}) == ["a.Base"]
    assert halves(two, {"Base"}) == []
    assert halves([*two, Class("c", "Other", frozenset(), ("a.Base",))], set()) == []


def small(lines: Mapping[str, int], importers: Mapping[str, set[str]]) -> list[str]:
    return sorted(name for name, count in lines.items() if count < SMALL_LINES and len(importers.get(name, ())) == 1)


def test_a_few_lines_for_one_reader_stand_with_it() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for edge in edges():
        importers[edge.imported].add(edge.importer)
    lines = {name: path.read_text().count("\n") for name, path in modules().items() if path.stem != "__init__"}
    found = small(lines, importers)
    assert len(found) <= SMALL_MAX, found
    assert small({"a": 10, "b": 10, "c": 60}, {"a": {"x"}, "b": {"x", "y"}, "c": {"x"}}) == ["a"]


def test_a_name_stands_for_one_thing_or_two() -> None:
    counts = Counter(each.name for each in classes())
    assert {name: count for name, count in counts.items() if count > NAME_MAX} == {}, "give them names of their own"
