"""Code is cut where its subjects part: no class in halves, and a public name for one thing."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable

from tests.architecture.house import modules, nodes
from tests.architecture.measures import Class, classes

HALVES = {
    "hub_api.answers.OpenGapView": "the type of members of another answer; types are decoded, and never made",
    "hub_api.answers.EdgeOfHub": "likewise",
    "hub_api.answers.StreamOf": "likewise",
    "config.links.Times": "the schedule of a region, which is decoded, and never made",
    "config.payload_schema.model.PayloadSchema": "the schemas of pipelines and hubs, which are decoded, and never made",
    "storage.segment_log.reader.LogAnswers": "what readers on other threads ask of the log, on its one lock",
    "storage.segment_log.space.LogSpace": "likewise what decides about room",
}
"""Base that only one class has, and that nothing makes -> why it is no half of that class."""
NAME_MAX = 2
"""Classes of a package that may have one name. A private name is its module's own affair."""


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


def shared_names(found: Iterable[Class]) -> dict[tuple[str, str], int]:
    """Package and public name -> its classes, where there are more than may be."""
    counts = Counter((each.module.partition(".")[0], each.name) for each in found if not each.name.startswith("_"))
    return {named: count for named, count in counts.items() if count > NAME_MAX}


def test_a_public_name_stands_for_one_thing_or_two_in_a_package() -> None:
    assert shared_names(classes()) == {}, "give them names of their own"


def test_a_name_of_too_many_is_found() -> None:
    def of(name: str, *modules: str) -> list[Class]:
        return [Class(module, name, frozenset(), ()) for module in modules]

    assert shared_names(of("Held", "a.one", "a.two", "a.three")) == {("a", "Held"): 3}
    assert shared_names([*of("Held", "a.one", "a.two", "b.one"), *of("_State", "a.one", "a.two", "a.three")]) == {}
