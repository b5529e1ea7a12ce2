"""The house stays tidy: no circle, no import up, no hidden clock, no lost task, no long function."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pytest

from tests.architecture.house import (
    PACKAGES,
    circles,
    edges,
    modules,
    nodes,
    place,
    room,
    sources,
    strongly_connected,
    upward,
)
from tests.architecture.rooms import ROOMS

FUNCTION_LINES_MAX = 85
"""A function fits on a screen, docstring included. Lines with a comment alone do not count: a reason costs nothing."""
LONG_FUNCTIONS = {
    "protocols/mqtt/publish_run.py::scan": "the hot loop of PUBLISH packets: a call for each packet would cost a third"
}

COMPOSITION_ROOTS = {
    "edge_node/node.py": "starts an edge node",
    "edge_node/timing.py": "what node.py hands on: wall clock, boot clock, and whether it is synchronised",
    "cloud_hub/hub.py": "starts a hub",
    "weft/commands/": "a command begins now",
}
"""Places that may read a clock. All others are given the time, or a clock to ask, and can be tested at any moment.

``loop.time()`` is not in question: it belongs to the loop that a test may replace. A clock as the default of a
parameter is no read; a test hands in another.
"""
CLOCKS = {
    "time": {
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "process_time_ns",
        "thread_time",
        "thread_time_ns",
        "clock_gettime",
        "clock_gettime_ns",
        "localtime",
        "gmtime",
    },
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
"""Module or class -> its calls that read a clock. ``gmtime`` and ``localtime`` only without an argument."""
READS = {call for calls in CLOCKS.values() for call in calls}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """An import for types alone, or inside a function, counts: it hides a circle and removes none."""
    assert circles() == [], "move what both need into a module below them"


@pytest.mark.parametrize("folder", ROOMS)
def test_no_room_knows_a_room_above_it(folder: str) -> None:
    assert [str(edge) for edge in upward(folder)] == [], f"ROOMS[{folder!r}] in tests/architecture/rooms.py"


def test_a_table_of_rooms_names_rooms_that_are_there() -> None:
    found = {folder: {room(folder, name) for name in modules()} for folder in ROOMS}
    gone = [
        f"{folder}.{name}"
        for folder, floors in ROOMS.items()
        for names in floors
        for name in names
        if name != "*" and name not in found[folder]
    ]
    assert gone == []


def test_a_running_node_does_not_know_how_it_is_inspected() -> None:
    """``inspect`` reads the log as another process sees it: from node.py it would run beside the log's own writer."""
    assert (
        reached_from("edge_node.node") & {name for name in modules() if name.startswith("edge_node.inspect")} == set()
    )


def reached_from(module: str) -> set[str]:
    graph: dict[str, set[str]] = {}
    for edge in edges():
        graph.setdefault(edge.importer, set()).add(edge.imported)
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def test_only_composition_roots_read_a_clock() -> None:
    found = [
        f"{place(path)}:{line}: {read}"
        for path in sources(*PACKAGES)
        if not place(path).startswith(tuple(COMPOSITION_ROOTS))
        for line, read in clock_reads(nodes(path))
    ]
    assert found == []


def clock_reads(module: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in module:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            # By their bare names calls of these could not be distinguished from others.
            yield from ((node.lineno, f"from time import {each.name}") for each in node.names if each.name != "sleep")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
            owner = ast.unparse(node.func.value).rpartition(".")[2]
            is_conversion = node.func.attr in ("gmtime", "localtime") and node.args
            if node.func.attr in CLOCKS.get(owner, ()) and not is_conversion:
                yield node.lineno, ast.unparse(node.func)


def test_no_task_is_started_and_forgotten() -> None:
    """The loop keeps weak references only: a task that nothing holds may vanish half done, and its error is lost."""
    found = [
        f"{place(path)}:{line}"
        for path in sources(*PACKAGES, "tests", "bench", "examples")
        for line in forgotten_tasks(nodes(path))
    ]
    assert found == []


def forgotten_tasks(module: Sequence[ast.AST]) -> Iterator[int]:
    groups = {
        item.optional_vars.id
        for node in module
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and ast.unparse(item.context_expr).endswith("TaskGroup()")
    }
    for node in module:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute | ast.Name):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
        if name in ("create_task", "ensure_future"):
            owner = ast.unparse(call.func).rpartition(".")[0]
            if owner not in groups:  # A task group holds its tasks and waits for them.
                yield call.lineno


def test_no_function_is_too_long() -> None:
    found = {
        f"{place(path)}::{node.name}": lines - comments_within(path.read_text(), node.lineno, node.end_lineno)
        for path in sources(*PACKAGES, "tests", "bench", "docs", "examples")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    long = {name: lines for name, lines in found.items() if lines > FUNCTION_LINES_MAX}
    assert {name: lines for name, lines in long.items() if name not in LONG_FUNCTIONS} == {}, (
        f"{FUNCTION_LINES_MAX} lines at most: move a step to a function of its own"
    )
    assert LONG_FUNCTIONS.keys() <= long.keys(), "they are short now: take them out of LONG_FUNCTIONS"


def comments_within(source: str, first: int, last: int) -> int:
    """Count the lines from ``first`` to ``last`` that have a comment alone."""
    return sum(
        token.type == tokenize.COMMENT and first <= token.start[0] <= last and not token.line[: token.start[1]].strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    )


QUOTED = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*?\))?``")
IS_A_NAME = re.compile(r"\w*(?:_\w|[a-z][A-Z]|[A-Z]{2})\w*|[A-Z][a-z]\w*")
"""What code names and prose does not: snake_case, CamelCase, UPPER_CASE and capitalised words."""


def test_names_in_docstrings_and_comments_are_there() -> None:
    """Double backticks quote names of the code; what others name, such as an option of Spark, stands in single ones."""
    found = stale({name: path.read_text() for name, path in modules().items()})
    assert found == [], "it has another name or place now"


def stale(sources_of: Mapping[str, str]) -> list[str]:
    """Return the names that texts quote and no module has. A module's own name is its dotted one or the end of it."""
    texts: dict[str, list[str]] = {}
    words: dict[str, set[str]] = defaultdict(set)
    pairs = {pair for name in sources_of for pair in pairwise(name.split("."))}
    for name, source in sources_of.items():
        # Split by hand, in a tenth of a tokenizer's time: a string of three quotes in code is rare, and counts as text.
        parts = source.split('"""')
        code = "\n".join(parts[::2])
        texts[name] = [*parts[1::2], *re.findall(r"#.*", code)]
        code = re.sub(r"#.*", "", code)
        words[name.rpartition(".")[2]].update(re.findall(r"\w+", code))
        pairs.update(re.findall(r"(?=\b([A-Za-z_]\w*)\.([A-Za-z_]\w*))", code))
    known = {*dir(builtins), *(part for name in sources_of for part in name.split("."))}.union(*words.values())

    def is_there(parts: Sequence[str]) -> bool:
        if parts[-1] == "py" and len(parts) > 1:
            return parts[-2] in words
        if not any(map(IS_A_NAME.fullmatch, parts)) and parts[0] not in PACKAGES:
            return True
        return set(parts) <= known and all(
            (one, other) in pairs or one[0].isupper() or one == "weft" or other in words[one]
            for one, other in pairwise(parts)
        )

    return [
        f"{name}: {quoted}"
        for name in texts
        for text in texts[name]
        for quoted in QUOTED.findall(text)
        if not is_there(quoted.split("."))
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("``Log``, ``log.Log``, ``log.Log.append``, ``storage.log.LIMIT_S`` and ``append(n)``", []),
        ("``OLD_S``, ``old.Log`` and ``log.append_all``", ["OLD_S", "old.Log", "log.append_all"]),
        ("``log.py`` and ``old.py``", ["old.py"]),
        ("``temperature`` and ``motor.rpm`` are data, `OLD_S` is of another project", []),
    ],
)
def test_stale_names_are_found(text: str, names: list[str]) -> None:
    code = "LIMIT_S = 1\nclass Log:\n    def append(self, n): ...\n"
    found = [stale({"storage.log": f"{code}{quoted}\n"}) for quoted in (f'"""{text}"""', f"# {text}")]
    assert found == [[f"storage.log: {name}" for name in names]] * 2


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"d"}}
    assert sorted(sorted(group) for group in strongly_connected(graph)) == [["a"], ["b", "c"], ["d"]]


def test_comments_within_lines_are_counted() -> None:
    assert comments_within('# a\ndef f():\n    # b\n    """\n    # c\n    """\n    return 1  # d\n', 2, 7) == 1


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("import time\nnow = time.monotonic()", 1),
        ("import datetime\nnow = datetime.datetime.now(datetime.UTC)", 1),
        ("from time import monotonic", 1),
        ("import time\ntext = time.gmtime()", 1),
        ("import time\ntext = time.gmtime(0)", 0),
        ("import time\ndef __init__(clock=time.monotonic): clock()", 0),
        ("now = asyncio.get_running_loop().time()", 0),
    ],
)
def test_reads_of_a_clock_are_found(source: str, reads: int) -> None:
    assert len(list(clock_reads(list(ast.walk(ast.parse(source)))))) == reads


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("asyncio.create_task(work())", [1]),
        ("loop.create_task(work())", [1]),
        ("task = asyncio.create_task(work())", []),
        ("async def f():\n async with asyncio.TaskGroup() as group:\n  group.create_task(work())", []),
        ("async def f():\n async with asyncio.TaskGroup() as group:\n  asyncio.create_task(work())", [3]),
    ],
)
def test_forgotten_tasks_are_found(source: str, lines: list[int]) -> None:
    assert list(forgotten_tasks(list(ast.walk(ast.parse(source))))) == lines


HTTP_SERVERS = {"network/http_server.py", "edge_node/control/server.py"}
"""Modules with a server of aiohttp. Their connections are made by `connection_of`, which has all settings."""
OTHER_SERVERS = {"TCPSite", "UnixSite", "SockSite", "NamedPipeSite", "ServerRunner", "run_app"}
WHOLE_BODIES = {"post", "multipart", "json", "text"}
"""Methods of a request that read, and parse, a body of any form without a turn of the loop."""


def test_libraries_of_http_do_nothing_that_no_setting_bounds() -> None:
    """The list is in docs/security.md, "What libraries do by themselves"."""
    found = []
    for path in sources(*PACKAGES):
        for node in nodes(path):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            call, of = node.func.attr, ast.unparse(node.func.value)
            given = {each.arg: ast.unparse(each.value) for each in node.keywords}
            is_bound = given.get("compress") == given.get("autoping") == "False" and "max_msg_size" in given
            if (
                (call == "AppRunner" and not (place(path) in HTTP_SERVERS and "connection_of(" in path.read_text()))
                or (call == "WebSocketResponse" and not is_bound)
                or (of == "request" and call in WHOLE_BODIES)
                or call in OTHER_SERVERS
                or call == "enable_compression"
            ):
                found.append(f"{place(path)}:{node.lineno} {of}.{call}")
    assert found == [], "bound what the library does, and write it down on that page"


# --- Tests share their nodes and clients: one class has the name, and what is another thing has a name of its own


NAMES = ("Node", "Client")


def classes(name: str, *files: tuple[str, tuple[ast.AST, ...]]) -> Iterator[str]:
    """Files in which a class has the name."""
    for file, found in files:
        yield from (file for node in found if isinstance(node, ast.ClassDef) and node.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_one_class_has_the_name(name: str) -> None:
    files = ((place(path), nodes(path)) for path in sources("tests"))
    found = list(classes(name, *files))
    assert len(found) <= 1, f"use one of them, or say what the others are: {found}"


def test_a_second_class_is_found() -> None:
    two = tuple(ast.walk(ast.parse("class Node:\n    class Client:\n        pass\nclass Node:\n    pass")))
    assert list(classes("Node", ("a.py", two))) == ["a.py", "a.py"]
    assert list(classes("Client", ("a.py", two))) == ["a.py"]
