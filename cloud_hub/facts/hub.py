"""Facts about the hub itself: drained processes, orders to its links to other regions, and its backups."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.cloud_hub.facts.fact import (
    BACKUP,
    REGION,
    CannotDeclare,
    Decision,
    UnreadableDocument,
    decode,
    encode,
    listed,
    read_fact,
)
from weft.storage.cluster_log import NODE, Change, ClusterState, Fact


class NodeDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hub process or a machine with some; the name of the fact is that of the process or of the machine."""

    drained: bool = False
    """True while it gives its shards and its edges to others."""


class RegionDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The links to another region; the name of the fact is that of the region in the configurations of the hubs."""

    paused: bool = False
    """True while records wait for `weft hub region resume`."""
    comparison: Annotated[int, Meta(ge=0)] = 0
    """Number of the last comparison of the whole log with the region. Positions of earlier comparisons are ignored."""


class BackupDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last complete backup in a place; the name of the fact is that of the place."""

    started: int
    """Moment up to which it has everything, nanoseconds since 1970."""
    finished: int


PLACE_CHARACTERS_MAX = 200


def note_backup(place: str, backup: BackupDocument) -> Decision:
    """Declare that a backup is complete.

    Args:
        place: URI. The end of a long one is kept.
    """
    return lambda _: Change(BACKUP, place[-PLACE_CHARACTERS_MAX:], encode(backup))


def drain(name: str, others: Collection[tuple[str, str]]) -> Decision:
    """Declare that a process, or all of a machine, gives its shards and edges to others.

    Args:
        others: machine and name of each of the other processes that run.

    Raises:
        CannotDeclare: from the decision: no other process can take them, since all are drained or none runs.
    """

    def decide(state: ClusterState) -> Change | None:
        if not any(_takes_shards(state, host) and _takes_shards(state, process) for host, process in others):
            raise CannotDeclare(
                f"no other running process can own the shards of {name}. Start one, or end the drain of a node "
                f"(--undo). Drained are: {listed(state.facts(NODE))}"
            )
        fact = state.facts(NODE).get(name)
        document = encode(NodeDocument(drained=True), None if fact is None else fact.document)
        return None if fact is not None and document == fact.document else Change(NODE, name, document)

    return decide


def undo_drain(name: str) -> Decision:
    """Declare that a drained process or machine takes shards and edges again.

    Raises:
        CannotDeclare: from the decision: it is not drained.
    """

    def decide(state: ClusterState) -> Change | None:
        if name not in state.facts(NODE):
            raise CannotDeclare(f"{name} is not drained; drained are: {listed(state.facts(NODE))}")
        return Change(NODE, name, None)

    return decide


def pause_region(name: str, *, paused: bool) -> Decision:
    """Declare that the links to another region pause or continue.

    Raises:
        CannotDeclare: from the decision: it is to continue, and is not paused.
    """

    def change(before: RegionDocument) -> RegionDocument:
        if not paused and not before.paused:
            raise CannotDeclare(f"region {name} is not paused")
        return msgspec.structs.replace(before, paused=paused)

    return _region(name, change)


def compare_region(name: str) -> Decision:
    """Declare that the links to another region restart from the beginning of the log, and send what the region
    lacks."""
    return _region(name, lambda before: msgspec.structs.replace(before, comparison=before.comparison + 1))


def _region(name: str, change: Callable[[RegionDocument], RegionDocument]) -> Decision:
    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(REGION).get(name)
        before = RegionDocument() if fact is None else read_fact(name, REGION, fact.document, RegionDocument)
        document = encode(change(before), None if fact is None else fact.document)
        return None if fact is not None and document == fact.document else Change(REGION, name, document)

    return decide


def _takes_shards(state: ClusterState, node: str) -> bool:
    fact = state.facts(NODE).get(node)
    try:
        return fact is None or not decode(fact.document, NodeDocument).drained
    except UnreadableDocument:
        return True  # as its processes do


class Drained:
    """Names of the drained hub processes and machines."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self.facts: list[Fact] = []
        """The declarations of drains, by name."""
        self.unusable: dict[str, str] = {}
        """Names of nodes whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Apply the declarations of the cluster log. Return whether the drained processes changed."""
        before, found = self._names, set[str]()
        self.unusable = {}
        for name, fact in state.facts(NODE).items():
            try:
                if decode(fact.document, NodeDocument).drained:
                    found.add(name)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
        self._names = frozenset(found)
        self.facts = [state.facts(NODE)[name] for name in sorted(found)]
        return self._names != before

    def covers(self, host: str, name: str) -> bool:
        """Return whether a process is drained, itself or with its machine.

        Args:
            host: name of its machine.
            name: its own name.
        """
        return host in self._names or name in self._names


class DeclaredRegions:
    """Orders to the links to other regions."""

    def __init__(self) -> None:
        self._regions: dict[str, RegionDocument] = {}
        self.unusable: dict[str, str] = {}
        """Names of regions whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Apply the declarations of the cluster log. A region whose declaration cannot be read keeps its last
        orders."""
        found, self.unusable = {}, {}
        for name, fact in state.facts(REGION).items():
            try:
                found[name] = decode(fact.document, RegionDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                if name in self._regions:
                    found[name] = self._regions[name]
        self._regions = found

    def of(self, name: str) -> RegionDocument:
        """Return the orders to the links of one region."""
        return self._regions.get(name, _NO_ORDERS)


_NO_ORDERS = RegionDocument()


class LastBackup(NamedTuple):
    """The most recent complete backup."""

    place: str
    started: int
    """Moment up to which it has everything, nanoseconds since 1970."""


class Backups:
    """Complete backups of the store, as the commands that made them declared."""

    def __init__(self) -> None:
        self.last: LastBackup | None = None
        self.unusable: dict[str, str] = {}
        """Names of places whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log."""
        self.last, self.unusable = None, {}
        for place, fact in state.facts(BACKUP).items():
            try:
                found = LastBackup(place, decode(fact.document, BackupDocument).started)
            except UnreadableDocument as error:
                self.unusable[place] = str(error)
                continue
            if self.last is None or found.started > self.last.started:
                self.last = found

    def age_s(self, now: int) -> float:
        """Return the age of the last one in seconds; infinity for none.

        Args:
            now: nanoseconds since 1970.
        """
        return math.inf if self.last is None else max(0, now - self.last.started) / 1e9
