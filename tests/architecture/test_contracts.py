"""Contracts have a reason: two implementations, or an import that they turn round."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.architecture.house import ALLOWED, edges, modules, nodes

OTHER_IMPLEMENTATIONS = {
    "storage.filesystem.Lock": "of the disks that tests have",
    "storage.object_store.probe.Overlapping": "the store of a test of the probe; asks what a store can do",
    "edge_node.servers.listeners.settings.Arrival": "connections without limits, of tests and of amqtt's plug-in",
}
"""Contract -> where its second implementation is, if that is not in the product."""
MERGED = (
    "cloud_hub.admin_facts.tenants.SlowedLink",
    "cloud_hub.pulls.AllPulls",
    "edge_node.ingest.ingest.Store",
    "edge_node.queues.queue.Reader",
    "edge_node.servers.amqp.connection.ClosingConnection",
    "edge_node.servers.amqp.consuming.ChannelDeliveries",
    "edge_node.servers.amqp1.connection.OpeningClient",
)
"""Contracts whose modules were parted, and are one now: to be struck."""


class Class(NamedTuple):
    """A class: the module that it is in, what it has, and the full names of its bases."""

    module: str
    name: str
    members: frozenset[str]
    bases: tuple[str, ...]

    @property
    def is_contract(self) -> bool:
        return "typing.Protocol" in self.bases


@functools.cache
def classes() -> tuple[Class, ...]:
    return tuple(each for module, path in modules().items() for each in classes_of(module, nodes(path)))


def classes_of(module: str, found: Iterable[ast.AST]) -> Iterator[Class]:
    found = list(found)
    imported = {
        name.asname or name.name: f"{(node.module or '').removeprefix('weft.')}.{name.name}"
        for node in found
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    for node in found:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            full = tuple(imported.get(base, f"{module}.{base}") for base in bases)
            yield Class(module, node.name, frozenset(_members(node)), full)


def _members(made: ast.ClassDef) -> Iterator[str]:
    yield from (each.name for each in made.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in ast.walk(made):
        target = node.target if isinstance(node, ast.AnnAssign) else node
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
            yield target.attr
        elif isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
            yield target.id


def lonely(found: Iterable[Class], imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Contracts with fewer than two implementations, none of which is in a module that imports them.

    Args:
        imports: module -> the modules that it imports, and those that these import, and so on.
    """
    found = list(found)
    by_name = {f"{each.module}.{each.name}": each for each in found}

    def members(of: Class) -> frozenset[str]:
        return of.members.union(*(members(by_name[name]) for name in of.bases if name in by_name))

    made = {each: members(each) for each in found if not each.is_contract}
    answer = []
    for contract in found:
        if not contract.is_contract:
            continue
        wanted = {name for name in members(contract) if not name.startswith("__") or name == "__call__"}
        having = [each for each in made if wanted <= made[each]]
        turned = any(contract.module in imports[each.module] or _above(each, contract) for each in having)
        if len(having) < 2 and not turned:
            answer.append(f"{contract.module}.{contract.name}")
    return answer


def _above(implementation: Class, contract: Class) -> bool:
    """Whether the contract's package may not import the implementation's."""
    mine, theirs = contract.module.partition(".")[0], implementation.module.partition(".")[0]
    return mine != theirs and theirs not in ALLOWED.get(mine, ())


def reached() -> dict[str, frozenset[str]]:
    direct: dict[str, set[str]] = {name: set() for name in modules()}
    for edge in edges():
        direct[edge.importer].add(edge.imported)
    found = {}
    for name in direct:
        seen, waiting = {name}, [name]
        while waiting:
            new = direct[waiting.pop()] - seen
            seen |= new
            waiting += new
        found[name] = frozenset(seen - {name})
    return found


def test_no_contract_stands_for_one_class_that_could_be_imported() -> None:
    assert sorted(lonely(classes(), reached())) == sorted((*OTHER_IMPLEMENTATIONS, *MERGED))


def test_lonely_contracts_are_found() -> None:
    source = (
        "from typing import Protocol\n"
        "class Lonely(Protocol):\n    def go(self) -> None: ...\n"
        "class Shared(Protocol):\n    name: str\n"
        "class One:\n    name = 'one'\n    def go(self) -> None: ...\n"
        "class Two:\n    def __init__(self) -> None:\n        self.name = 'two'\n"
    )
    found = list(classes_of("room.one", list(ast.walk(ast.parse(source)))))
    assert lonely(found, {"room.one": frozenset()}) == ["room.one.Lonely"]
    above = [each if each.name != "One" else each._replace(module="room.two") for each in found]
    assert lonely(above, {"room.one": frozenset(), "room.two": frozenset({"room.one"})}) == [], (
        "it turns an import round"
    )
