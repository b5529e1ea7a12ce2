"""Groups of a tenant's edges: names, and patterns of names, declared in the cluster log."""

from __future__ import annotations

from typing import NamedTuple

from weft.cloud_hub.declared.changes import CannotDeclare, Decision, check_tenant, known_fact, read_fact
from weft.cloud_hub.declared.documents import (
    CONFIG,
    GROUP,
    GroupDocument,
    UnreadableDocument,
    decode,
    encode,
    parse_stream_name,
    stream_name,
)
from weft.cloud_hub.declared.layers import crowded, with_settings
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.shard.completeness import matches
from weft.storage.cluster_log.entry import DOCUMENT_BYTES_MAX
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState

GroupKey = tuple[str, str]
"""(tenant, group)"""
REMEMBERED_MAX = 100_000
"""Maximum number of edges whose groups are remembered: with all patterns it takes 0.5 ms to find them."""
GROUPS_PER_TENANT_MAX = 256
"""Maximum number of groups of a tenant."""
PATTERNS_PER_TENANT_MAX = 1024
"""Maximum number of patterns of a tenant's groups together: a hub compares each edge that links with all of them."""


class _Tenant(NamedTuple):
    """The groups of one tenant."""

    place: dict[str, tuple[int, str]]
    """Group -> its place, which the groups of an edge are sorted by."""
    named: dict[str, list[str]]
    """Edge -> the groups that name it."""
    patterns: list[tuple[str, str]]
    """(pattern, group)"""


class Groups:
    """The groups of all tenants, as of the last ``refresh``."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._documents: dict[GroupKey, GroupDocument] = {}
        self._seen: tuple[ClusterState, int] | None = None
        self._remembered: dict[tuple[str, str], tuple[str, ...]] = {}
        self.unusable: dict[str, str] = {}
        """Names of groups whose declaration cannot be read, each with the reason."""

    @classmethod
    def of(cls, state: ClusterState) -> Groups:
        """Return the groups of a state of the cluster log."""
        groups = cls()
        groups.refresh(state)
        return groups

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log, if there is an entry about a group since the last call.

        Returns:
            Whether there was one.
        """
        last = state.last(GROUP)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return False
        self._seen, self._tenants, self._documents, self.unusable = (state, last), {}, {}, {}
        self._remembered.clear()
        for name, fact in state.facts(GROUP).items():
            try:
                document = decode(fact.document, GroupDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            self._take(parse_stream_name(name), document)
        return True

    def _take(self, key: GroupKey, document: GroupDocument) -> None:
        self._documents[key] = document
        tenant = self._tenants.setdefault(key[0], _Tenant({}, {}, []))
        tenant.place[key[1]] = document.order, key[1]
        for edge in document.edges:
            if "*" in edge:
                tenant.patterns.append((edge, key[1]))
            else:
                tenant.named.setdefault(edge, []).append(key[1])

    def of_edge(self, tenant: str, edge: str) -> tuple[str, ...]:
        """Return the groups of an edge, in the order in which a later one's word wins over an earlier one's."""
        groups = self._tenants.get(tenant)
        if groups is None:
            return ()
        if (known := self._remembered.get((tenant, edge))) is not None:
            return known
        found = {*groups.named.get(edge, ()), *(group for pattern, group in groups.patterns if matches(pattern, edge))}
        ordered = tuple(sorted(found, key=lambda group: groups.place[group]))
        if len(self._remembered) < REMEMBERED_MAX:
            self._remembered[tenant, edge] = ordered
        return ordered

    def document(self, key: GroupKey) -> GroupDocument | None:
        """Return what is declared of a group; None if nothing is, or it cannot be read."""
        return self._documents.get(key)


def set_group(key: GroupKey, edges: tuple[str, ...], order: int | None = None) -> Decision:
    """Declare a group of edges, or replace the edges of one.

    Args:
        edges: names, and patterns in which ``*`` stands for any characters.
        order: place of the group among others; None to leave it as it is, 0 for a new one.

    Raises:
        CannotDeclare: a name is not valid, or there is none; from the decision: the tenant is unknown or has too many
            groups or patterns.
    """
    wrong = [each for each in (*key, *(edge.replace("*", "x") for edge in edges)) if not valid_name(each)]
    if wrong:
        raise CannotDeclare(f"{wrong[0]!r} cannot be a name: {NAME_RULE}; names of edges may have `*`")
    if not edges:
        raise CannotDeclare("a group needs edges: name some, or withdraw it (`weft hub group remove`)")
    members = tuple(dict.fromkeys(edges))
    name = stream_name(key)

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        fact = state.facts(GROUP).get(name)
        before = GroupDocument(()) if fact is None else read_fact(name, GROUP, fact.document, GroupDocument)
        document = encode(
            GroupDocument(members, before.order if order is None else order), None if fact is None else fact.document
        )
        if len(document) > DOCUMENT_BYTES_MAX:
            raise CannotDeclare(
                f"the names of {len(members)} edges have {len(document)} bytes, more than {DOCUMENT_BYTES_MAX >> 10} "
                "KiB: use patterns such as 'press-*', or several groups"
            )
        if fact is not None and document == fact.document:
            return None
        _check_room(state, key, members)
        return Change(GROUP, name, document)

    return decide


def _check_room(state: ClusterState, key: GroupKey, members: tuple[str, ...]) -> None:
    known = Groups.of(state)
    others = [document for each, document in known._documents.items() if each[0] == key[0] and each != key]
    if len(others) >= GROUPS_PER_TENANT_MAX:
        raise CannotDeclare(f"tenant {key[0]} has {len(others)} groups, its limit: withdraw one first")
    patterns = sum("*" in edge for document in others for edge in document.edges) + sum("*" in edge for edge in members)
    if patterns > PATTERNS_PER_TENANT_MAX:
        raise CannotDeclare(
            f"the groups of tenant {key[0]} would have {patterns} patterns, at most {PATTERNS_PER_TENANT_MAX}: use "
            "fewer"
        )
    if key[1] in with_settings(state, CONFIG, key[0]):
        check_layers(state, key, members)


def check_layers(state: ClusterState, key: GroupKey, members: tuple[str, ...] | None = None) -> None:
    """Refuse a group with settings by which an edge may get the settings of too many groups.

    Args:
        members: names and patterns that are declared for it; None for those that it has.

    Raises:
        CannotDeclare: an edge may be in too many such groups.
    """
    tenant, known = key[0], Groups.of(state)._documents
    groups = {group: known[tenant, group].edges for group in with_settings(state, CONFIG, tenant) | {key[1]}
              if (tenant, group) in known}  # fmt: skip
    if members is not None:
        groups[key[1]] = members
    if (why := crowded(groups)) is not None:
        raise CannotDeclare(f"{why}: withdraw settings of some (`weft hub config remove --group`), or name fewer edges")


def remove_group(key: GroupKey) -> Decision:
    """Withdraw a group.

    Raises:
        CannotDeclare: from the decision: there is no such group, or settings are declared for it.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, GROUP, name)
        if f"{key[0]}/group/{key[1]}" in state.facts(CONFIG):
            raise CannotDeclare(
                f"settings are declared for group {name}, which its edges would lose: withdraw them first (`weft hub "
                "config remove --group`)"
            )
        return Change(GROUP, name, None)

    return decide
