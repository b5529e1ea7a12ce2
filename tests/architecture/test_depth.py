"""Modules are deep, and nothing ties fragments of one thing together; exceptions are listed, and become fewer."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest

from tests.architecture.house import PACKAGES, ROOT, modules, nodes, place, sources
from tests.architecture.measures import (
    MODULE_LINES,
    RULES,
    Class,
    Found,
    Measures,
    Source,
    classes,
    lines_of,
    listed,
    measure,
    median_module,
    new_exceptions,
    of_the_tree,
    report,
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


# --- The figures of the product's modules count what they say


SOURCE = '''"""A module."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Log(Protocol):
    def append(self, row: bytes) -> None: ...


class OwnLog:
    def append(self, row: bytes) -> None:
        self.last = row


class Node:
    # Nine arguments are too many.
    def __init__(self, a, b, c, d, e, f, g, h, on_end: Callable[[], None]) -> None:
        self.log = OwnLog()
        self.log.last = b""

    def keep(self, row: bytes) -> None:
        """Append a row."""
        self.log.append(row)

    def keep_twice(self, row: bytes) -> None:
        self.log.append(row + row)
'''


def test_lines_are_counted_by_kind() -> None:
    counted = lines_of(source_of(SOURCE))._asdict()
    assert counted == {"code": 13, "imports": 3, "docstrings": 2, "comments": 1, "blank": 9}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""One\n\ntwo."""\n\nA = 1  # counts\n"""What it is."""\n', 1),
        ("# alone\n\ndef f():\n    # why\n    return (\n        1\n    )\n", 4),
        ('A = """\none\n\n# two\n"""\n', 5),
        ('A = (\n    "one"\n    # why\n    "two"\n)\n', 4),
        ('class C:\n    """C."""\n\n    a: int\n    """A.\n    """\n\n    def f(self):\n        """F."""\n', 3),
    ],
)
def test_lines_of_code_are_counted(text: str, lines: int) -> None:
    assert lines_of(source_of(text)).code == lines


def test_half_of_the_lines_are_in_modules_of_at_most_that_of_the_median_line() -> None:
    assert median_module([100, 10, 10, 10]) == 100
    assert median_module([30, 10, 20]) == 20
    assert median_module([]) == 0


def test_what_ties_fragments_together_is_found() -> None:
    found = measure({"room.node": source_of(SOURCE)})
    assert found.files == 1
    assert found.callback_arguments == 1
    assert {kind: [each.key for each in those] for kind, those in found.exceptions.items() if those} == {
        "contracts": ["room: Log"],
        "forwarders": ["room: Node.keep"],
        "late": ["room: __init__: self.log.last"],
        "constructors": ["room: Node"],
    }
    assert "forwarders                                       1" in report(found)


# --- Code is cut where its subjects part: no class in halves, and a public name for one thing


HALVES = {
    "hub_api.answers.OpenGapView": "the type of members of another answer; types are decoded, and never made",
    "hub_api.edges.EdgeOfHub": "likewise",
    "hub_api.streams.StreamOf": "likewise",
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


# --- Tests lie as the modules do


TEST_LINES_MAX = 1_000
SUBJECTS = {
    "cloud_hub": "backup histories tls",
    "cloud_hub/http": "api_page pairing",
    "cloud_hub/shard": "completeness",
    "cloud_hub/tables": "columns crashes maintenance skipped statistics tiering",
    "edge_node/derived": "power_cuts",
    "edge_node/ingest": "payload_checks",
    "edge_node/links": "starts_and_stops",
    "edge_node/queues": "features_model parts queues_model steps",
    "edge_node/servers": "ends every_protocol",
    "edge_node/servers/amqp": "abuse topology",
    "edge_node/servers/amqp1": "opening receiving sending traces",
    "edge_node/servers/listeners": "reconnects",
    "edge_node/servers/mqtt": "broker_model listeners mqtt5 turns",
    "edge_node/sessions": "models restart shared_crash shares",
    "edge_node/sources": "killed modbus_source opcua_source other_servers",
    "functions": "pages restart sparkplug_on_a_node",
    "hub_api": "schemathesis",
    "protocols": "persisted_numbers vectors",
    "spark_sinks": "delta_spark own_session releases",
    "spark_sinks/cluster": "pipelines reading",
    "spark_sinks/completeness": "event_time event_time_kills window_kills",
    "spark_sinks/pipelines": "commands report run",
    "spark_sinks/pipelines/shipped": "kills",
    "spark_sinks/sinks": "delivery",
    "spark_sinks/sinks/delta": "append kills",
    "spark_sinks/sinks/stream": "faults spread spread_kills task",
    "spark_sinks/source": "apart splits",
    "spark_sinks/tables": "handover",
    "storage/object_store": "conformance",
    "storage/segment_log": "model owner power_cuts retention",
    "weft": (
        "backup_kills distributions doctor fabric front_door hub_processes look_into_a_node reload rename "
        "spark_master trace try_functions"
    ),
    "weft/mistakes": "links mistakes spark",
}
"""What files of tests are about where it is no single module: folder below ``tests`` -> subjects."""


def test_tests_of_a_module_are_one_file_of_its_name() -> None:
    unknown = []
    for package in PACKAGES:
        for path in sorted((ROOT / "tests" / package).rglob("test_*.py")):
            folder = path.parent.relative_to(ROOT / "tests")
            modules = {each.stem for each in (ROOT / folder).rglob("*")}
            if path.stem.removeprefix("test_") not in modules | set(SUBJECTS.get(folder.as_posix(), "").split()):
                unknown.append(f"tests/{folder}/{path.name}")
    assert unknown == [], "put tests of a module into test_<module>.py, or name their subject in SUBJECTS"


def test_a_file_of_tests_fits_in_a_head() -> None:
    long = {
        path.name for path in (ROOT / "tests").rglob("test_*.py") if len(path.read_text().splitlines()) > TEST_LINES_MAX
    }
    assert long == set()
