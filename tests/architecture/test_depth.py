"""Modules are deep, and nothing ties fragments of one thing together; exceptions are listed, and become fewer."""

from __future__ import annotations

import pytest

from tests.architecture.house import place, sources
from tests.architecture.measures import (
    MODULE_LINES,
    RULES,
    Found,
    Measures,
    Source,
    lines_of,
    listed,
    measure,
    new_exceptions,
    of_the_tree,
    source_of,
    struck,
    written,
)

KEEP = "python -m tests.architecture.measures --exceptions"


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_has_the_listed_exceptions_alone(kind: str) -> None:
    new = new_exceptions(of_the_tree().exceptions, listed()).get(kind, [])
    assert [str(each) for each in new] == [], f"{RULES[kind]}. Where it has to be: {KEEP} --take REASON"


def test_what_is_no_exception_any_more_is_not_listed() -> None:
    known = listed()
    there = struck(of_the_tree().exceptions, known)
    gone = [
        f"{kind}: {key}"
        for kind, reasons in known.items()
        for reason, keys in reasons.items()
        for key in keys
        if key not in there[kind].get(reason, ())
    ]
    assert gone == [], f"strike it: ./run fix, or {KEEP}"


def test_every_exception_is_listed_once_and_has_a_reason() -> None:
    for kind, reasons in listed().items():
        keys = [key for each in reasons.values() for key in each]
        assert len(keys) == len(set(keys)), kind
        assert all(len(reason.split()) > 2 for reason in reasons), kind


def test_no_module_that_tests_share_is_too_long() -> None:
    """Modules of tests alone may list as many cases as there are."""
    helpers = [path for path in sources("tests", "bench", "docs", "examples") if not path.name.startswith("test_")]
    # Only modules that have more lines of all kinds are parsed for their code.
    long = [path for path in helpers if path.read_text().count("\n") > MODULE_LINES[-1]]
    found = {place(path): lines_of(source_of(path.read_text())) for path in long}
    assert {name: each for name, each in found.items() if each.code + each.imports > MODULE_LINES[-1]} == {}


def kinds(found: Measures) -> dict[str, list[str]]:
    return {kind: [each.key for each in those] for kind, those in found.exceptions.items() if those}


def of(text: str, lines: int = 200) -> Source:
    """A module with the text and so many lines more."""
    return source_of(text + "A = 1\n" * lines)


LONELY = "from typing import Protocol\nclass Log(Protocol):\n    def append(self, row: bytes) -> None: ...\n"
APPENDS = "class {}:\n    def append(self, row: bytes) -> None:\n        self.last = row\n"
PLANTED = {
    "small": {"edge_node.one": of("", 149), "edge_node.two": of("from weft.edge_node.one import A\n")},
    "large": {"edge_node.one": of("", 701)},
    "fragments": {"edge_node.one": of("", 79), "edge_node.two": of("from weft.edge_node.one import A\n")},
    "constructors": {"edge_node.one": of("class Own:\n    def __init__(self, a, b, c, d, e, f, g, h, *, i): ...\n")},
    "callbacks": {
        "edge_node.one": of(
            "class Own:\n    def __init__(self, a: Callable[[], int], b: Callable[[], int], *, c: 'Callable'): ...\n"
            "class Timed:\n    def __init__(self, a: Callable[[], int], b: Callable[[], int], now: 'Callable'): ...\n"
        )
    },
    "late": {
        "edge_node.one": of(APPENDS.format("Log")),
        "edge_node.two": of(
            "from weft.edge_node.one import Log\n"
            "class Node:\n"
            "    def __init__(self, log: Log) -> None:\n"
            "        self.log = log\n"
            "        self.log.on_end = self.close\n"
        ),
    },
    "contracts": {"edge_node.one": of(LONELY + APPENDS.format("OwnLog"))},
    "forwarders": {
        "edge_node.one": of("class Own:\n    async def keep(self, row):\n        return await self.log.append(row)\n")
    },
}
"""Kind -> modules that break the rule once."""


@pytest.mark.parametrize("kind", RULES)
def test_a_planted_exception_is_found(kind: str) -> None:
    assert {name: len(keys) for name, keys in kinds(measure(PLANTED[kind])).items()} == {kind: 1}
    assert set(new_exceptions(measure(PLANTED[kind]).exceptions, {})) == {kind}


@pytest.mark.parametrize(
    "modules",
    [
        {"edge_node.one": of("", 150), "edge_node.two": of("", 700)},
        {"config.one": of(LONELY), "edge_node.two": of(APPENDS.format("OwnLog"))},
        {"edge_node.one": of(LONELY + APPENDS.format("One") + APPENDS.format("Two"))},
        {
            "edge_node.one": of(
                "class Own:\n"
                "    def __init__(self, a, b, c, d, e, f, g, h): ...\n"
                "    @property\n    def last(self):\n        return self.log.last()\n"
                "    def keep(self, row):\n        self.log.append(row + row)\n"
            )
        },
        {
            "edge_node.one": of(
                "import asyncio\nfrom collections import deque\n"
                "class Log:\n    def append(self, row): ...\n"
                "class OwnLog(Log):\n    def append(self, row):\n        self.log.append(row)\n"
                "class Own(asyncio.Protocol):\n"
                "    def __init__(self, log: dict[str, int] | None):\n"
                "        self.rows, self.log = 1, log\n        self.log = log\n        self.last = deque[int]()\n"
                "        self.last = [1]\n"
                "    def connection_made(self, transport):\n        self.part.connection_made(transport)\n"
                "    def get(self, key):\n        return self.log.get(key)\n"
                "    def keep(self, row):\n        self.last.append(row)\n"
                "    def __len__(self):\n        return self.part.size()\n"
            )
        },
        {
            "edge_node.one": of(
                LONELY
                + "class One:\n    def append(self, row):\n        self.log.append(row)\n"
                + APPENDS.format("Two")
            )
        },
        {
            "edge_node.links.one": of(LONELY),
            "edge_node.sources.two": of("from weft.edge_node.links.one import Log\n" + APPENDS.format("OwnLog")),
        },
        {
            "edge_node.one": of(LONELY, 400),
            "edge_node.two": of("from weft.edge_node.one import Log\n" + APPENDS.format("OwnLog"), 400),
        },
        {
            "edge_node.one": of(
                "class Refused(ValueError): ...\n"
                "class Ends:\n    def copy(self):\n        made = Ends()\n        made.ends = 1\n        return made\n"
                "def refuse():\n    refused = Refused()\n    refused.__cause__ = None\n    raise refused\n"
            )
        },
        {
            "edge_node.one": of("", 100),
            "edge_node.two": of("from weft.edge_node.one import A\n", 650),
            "edge_node.three": of("def run():\n    from weft.edge_node.four import A\n"),
            "edge_node.four": of("", 3),
        },
        {"edge_node.one": of("", 3)}
        | {f"edge_node.{room}.two": of("from weft.edge_node.one import A\n") for room in ("queues", "links", "access")},
        {
            "edge_node.one": of(
                "import ssl\nfrom dataclasses import dataclass\n@dataclass\nclass Row:\n    size: int = 0\n"
                "def read():\n    row = Row()\n    row.size = 1\n    context = ssl.SSLContext()\n    context.x = 1\n"
            )
        },
    ],
    ids=[
        "sizes",
        "a contract for a package above",
        "two implementations",
        "methods",
        "methods that a base or Python asks for, and those of collections",
        "a method that a contract asks for",
        "a contract for a folder that imports it",
        "a contract for a module that imports it, too long for one",
        "objects filled by their class, and a library's attribute",
        "modules without a home, and loaded alone",
        "a word that three folders share",
        "records and libraries",
    ],
)
def test_what_keeps_the_rules_is_not_found(modules: dict[str, Source]) -> None:
    assert kinds(measure(modules)) == {}


def test_a_package_may_have_a_small_map() -> None:
    both = {"edge_node.queues": of("", 3), "edge_node.one": of("from weft.edge_node.queues import A\n")}
    assert kinds(measure(both, {"edge_node.queues"})) == {}
    assert kinds(measure(both)) == {"fragments": ["edge_node.queues"]}


def test_a_list_keeps_what_is_still_there_with_its_reason() -> None:
    known = {"forwarders": {"of a contract": ["edge_node: Own.keep", "edge_node: Own.gone"]}, "late": {"why": ["x"]}}
    found = {"forwarders": [Found("edge_node.moved", "Own.keep"), Found("edge_node.one", "Own.new")]}
    assert struck(found, known) == {"forwarders": {"of a contract": ["edge_node: Own.keep"]}, "late": {}}
    assert new_exceptions(found, known) == {"forwarders": [Found("edge_node.one", "Own.new")]}
    assert written(struck(found, known)).endswith('\n[forwarders]\n"of a contract" = [\n  "edge_node: Own.keep",\n]\n')
