"""The modules of the project, what each imports, and the order of its rooms."""

from __future__ import annotations

import ast
import functools
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.architecture.rooms import OTHERS, ROOMS

ROOT = Path(__file__).parents[2]
FOUNDATION = {"protocols", "config", "bounds"}
ALLOWED: dict[str, set[str]] = {
    "protocols": set(),
    "bounds": set(),
    "config": set(),
    "hub_api": FOUNDATION,
    "functions": FOUNDATION,
    "network": FOUNDATION,
    "storage": FOUNDATION,
    "replication": {*FOUNDATION, "network"},
    "proofs": {*FOUNDATION, "storage"},
    "edge_node": {*FOUNDATION, "functions", "network", "storage", "replication"},
    "cloud_hub": {*FOUNDATION, "hub_api", "network", "storage", "replication"},
    "spark_sinks": {*FOUNDATION, "storage", "replication", "proofs"},
    "pyspark_weft": {"spark_sinks"},
    "weft": {
        *FOUNDATION,
        "hub_api",
        "functions",
        "network",
        "storage",
        "replication",
        "proofs",
        "edge_node",
        "cloud_hub",
        "spark_sinks",
    },
}
"""Package -> packages of ours that it may import, also inside functions."""
PACKAGES = tuple(ALLOWED)


class Edge(NamedTuple):
    """One import: who, where, whom."""

    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of the file's tree but contexts (load, store), as ``ast.walk`` in twice the time."""
    found: list[ast.AST] = [tree(path)]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return tuple(found)


@functools.cache
def modules() -> Mapping[str, Path]:
    """Dotted name below the repository -> file. A package goes by its own name: ``edge_node.inspect``."""
    return {_name(path): path for path in sources(*PACKAGES)}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def edges() -> tuple[Edge, ...]:
    """Every import of one module of ours by another, also for types alone and inside functions."""
    return tuple(
        Edge(name, line, found)
        for name, path in modules().items()
        for line, found in imported(nodes(path), modules())
        if found != name
    )


def imported(module: Sequence[ast.AST], known: Container[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each import of a ``known`` module."""
    for node in module:
        if isinstance(node, ast.Import):
            candidates = [[_local(alias.name)] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _local(node.module or "")
            # "from package import name": the module of that name, else the package, which has the name.
            candidates = [[f"{base}.{alias.name}", base] for alias in node.names]
        else:
            continue
        for names in candidates:
            if found := next((name for name in names if name in known), None):
                yield node.lineno, found


def _local(name: str) -> str:
    """The name below the repository: ``weft.storage`` is the folder ``storage`` (decision record 0030)."""
    rest = name.removeprefix("weft.")
    return rest if rest.partition(".")[0] in PACKAGES else name


def circles() -> list[list[str]]:
    """The modules that import each other in a circle, a sorted list for each (Tarjan's algorithm)."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for edge in edges():
        graph[edge.importer].add(edge.imported)
    return [sorted(group) for group in strongly_connected(graph) if len(group) > 1]


def strongly_connected(graph: Mapping[str, set[str]]) -> list[list[str]]:
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


def room(folder: str, module: str) -> str | None:
    """The room of the folder that the module stands in; None for a module of elsewhere."""
    if module == folder:
        return "__init__"
    return module.removeprefix(f"{folder}.").partition(".")[0] if module.startswith(f"{folder}.") else None


def floor(folder: str, name: str) -> int:
    """The floor of a room, from 0 at the ground.

    Raises:
        LookupError: the table has no place for it.
    """
    floors = ROOMS[folder]
    for wanted in (name, OTHERS):
        for number, names in enumerate(floors):
            if wanted in names:
                return number
    if name == "__init__":
        return len(floors)  # A package's own module hands out what its rooms hold.
    raise LookupError(f"give {folder}.{name} a floor: above what it imports (ROOMS in tests/architecture/rooms.py)")


def upward(folder: str) -> list[Edge]:
    """The imports between rooms of the folder that do not lead down."""
    found = []
    for edge in edges():
        importer, imported = room(folder, edge.importer), room(folder, edge.imported)
        if importer is None or imported is None or importer == imported:
            continue
        named = {name for names in ROOMS[folder] for name in names}
        if not {importer, imported} & named:
            continue  # Two of the others.
        if floor(folder, imported) >= floor(folder, importer):
            found.append(edge)
    return found
