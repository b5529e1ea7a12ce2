"""Groups of edges and configurations for edges: settings of groups and of single edges, declared in the cluster log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from weft.cloud_hub.facts.fact import (
    CONFIG,
    GROUP,
    CannotDeclare,
    Decision,
    UnreadableDocument,
    decode,
    encode,
    known_fact,
    parse_stream_name,
    read_fact,
    stream_name,
)
from weft.cloud_hub.facts.tenants import check_tenant
from weft.config.errors import ConfigError
from weft.config.load import check_overlay, topic_patterns, unreadable_in
from weft.protocols.lane import NAME_RULE, matches, valid_name
from weft.protocols.link import LAYERS_MAX, TEXT_CHARACTERS_MAX, ConfigDesired, ConfigLayer, desired_of
from weft.protocols.topics import InvalidTopic, check_pattern
from weft.storage.cluster_log import DOCUMENT_BYTES_MAX, Change, ClusterState

# Bound on the settings that come together at one edge: a frame has a layer for each of its groups, and one of its
# own.
#
# An edge with more would keep what it has, so a declaration that makes one possible is refused.

GROUPS_MAX = LAYERS_MAX - 1
"""Maximum number of groups with settings that an edge may be in."""
Members = Mapping[str, Sequence[str]]
"""Group -> names and patterns of its edges."""


def with_settings(state: ClusterState, kind: str, tenant: str) -> frozenset[str]:
    """Return the groups of a tenant for which settings are declared.

    Args:
        kind: of the facts with settings.
    """
    prefix = f"{tenant}/group/"
    return frozenset(name.removeprefix(prefix) for name in state.facts(kind) if name.startswith(prefix))


def crowded(groups: Members) -> str | None:
    """Return why an edge may be in too many of these groups; None if none can be.

    Names are checked one by one. For patterns, groups that can share an edge get different colours: an edge is in at
    most as many groups as there are colours, which is seldom too high a bound.
    """
    patterns = {group: found for group, edges in groups.items() if (found := [edge for edge in edges if "*" in edge])}
    colours: list[list[str]] = []
    for group in sorted(patterns, key=lambda each: (len(patterns[each]), each)):
        free = (colour for colour in colours if not any(_meet(patterns[group], patterns[other]) for other in colour))
        colour = next(free, None)
        if colour is None:
            colours.append(colour := [])
        colour.append(group)
    if len(colours) > GROUPS_MAX:
        what = f"an edge may be in {len(colours)} groups with settings, by their patterns"
        return f"{what}; the limit is {GROUPS_MAX}"
    named: dict[str, set[str]] = {}
    for group, edges in groups.items():
        for edge in edges:
            if "*" not in edge:
                named.setdefault(edge, set()).add(group)
    for edge, own in named.items():
        if len(own) + len(colours) > GROUPS_MAX:
            by_pattern = {group for group, of in patterns.items() if any(matches(each, edge) for each in of)}
            if (count := len(own | by_pattern)) > GROUPS_MAX:
                return f"edge {edge} would be in {count} groups with settings; the limit is {GROUPS_MAX}"
    return None


def _meet(these: Sequence[str], those: Sequence[str]) -> bool:
    return any(can_meet(one, other) for one in these for other in those)


def can_meet(one: str, other: str) -> bool:
    """Return whether a name may match both patterns, each with a ``*``. The part between the first and the last star of
    one fits into a star of the other."""
    begins, ends = (one.partition("*")[0], other.partition("*")[0]), (one.rpartition("*")[2], other.rpartition("*")[2])
    short, long = sorted(begins, key=len)
    short_end, long_end = sorted(ends, key=len)
    return long.startswith(short) and long_end.endswith(short_end)


# Groups of a tenant's edges: names, and patterns of names, declared in the cluster log.

GroupKey = tuple[str, str]
"""(tenant, group)"""
REMEMBERED_MAX = 100_000
"""Maximum number of edges whose groups are cached: with the maximum of patterns, finding them takes 0.5 ms."""
GROUPS_PER_TENANT_MAX = 256
"""Maximum number of groups of a tenant."""
PATTERNS_PER_TENANT_MAX = 1024
"""Maximum number of patterns of all groups of a tenant: a hub compares each edge that links with all of them."""


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
        """Return the groups of an edge in ascending precedence: settings of a later one override those of an earlier
        one."""
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
        """Return the declaration of a group; None if there is none, or it cannot be read."""
        return self._documents.get(key)


def set_group(key: GroupKey, edges: tuple[str, ...], order: int | None = None) -> Decision:
    """Declare a group of edges, or replace the edges of one.

    Args:
        edges: names, and patterns in which ``*`` matches any characters.
        order: precedence of the group; None to leave it unchanged, which is 0 for a new one.

    Raises:
        CannotDeclare: a name is not valid, or there is none; from the decision: the tenant is unknown or has too many
            groups or patterns.
    """
    wrong = [each for each in (*key, *(edge.replace("*", "x") for edge in edges)) if not valid_name(each)]
    if wrong:
        raise CannotDeclare(f"{wrong[0]!r} is not a valid name: {NAME_RULE}; names of edges may have `*`")
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
    """Refuse a group with settings if an edge may be in too many such groups.

    Args:
        members: names and patterns that are going to be declared for it; None for its current ones.

    Raises:
        CannotDeclare: an edge may be in too many such groups.
    """
    tenant, known = key[0], Groups.of(state)._documents
    groups = {
        group: known[tenant, group].edges
        for group in with_settings(state, CONFIG, tenant) | {key[1]}
        if (tenant, group) in known
    }
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


EDGE: Literal["edge"] = "edge"
GROUP_OF_EDGES: Literal["group"] = "group"
KNOWN_MAX = 4096
"""Maximum number of merged combinations of layers in the cache. Fleets have few."""
CROWDED_MAX = 64
"""Maximum number of edges with too many layers that are named. This release declares none."""
_OUT_OF = 1 << 64


def config_name(tenant: str, of: str, name: str) -> str:
    """Return the name of the fact about an edge or a group.

    Args:
        of: ``EDGE`` or ``GROUP_OF_EDGES``.
    """
    return f"{tenant}/{of}/{name}"


def point_of(edge: str, revision: int) -> float:
    """Return the edge's place, 0 to 1, in the order in which a rollout reaches edges. The order differs between
    rollouts, so that other edges are first each time."""
    return int.from_bytes(blake2b(f"{revision}/{edge}".encode(), digest_size=8).digest()) / _OUT_OF


def is_reached(document: ConfigDocument, edge: str) -> bool:
    """Return whether an edge of the group has the new text of a rollout."""
    rollout = document.rollout
    return rollout is None or rollout.share >= 1.0 or point_of(edge, document.revision) < rollout.share


class DesiredConfigs:
    """Configurations by edge, as of the last ``refresh``.

    Args:
        groups: of the same state of the cluster log.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._documents: dict[str, ConfigDocument] = {}
        self._made: dict[tuple[tuple[str, int], ...], ConfigDesired] = {}
        self._seen: tuple[ClusterState, int] | None = None
        self.unusable: dict[str, str] = {}
        """Names of facts that cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log, if there is an entry about a configuration since the last
        call.

        Returns:
            Whether there was one.
        """
        last = state.last(CONFIG)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return False
        self._seen, self._documents, self._made, self.unusable = (state, last), {}, {}, {}
        for name, fact in state.facts(CONFIG).items():
            try:
                self._documents[name] = decode(fact.document, ConfigDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
        return True

    @property
    def documents(self) -> dict[str, ConfigDocument]:
        """Return the declared configurations by the names of their facts."""
        return self._documents

    def of_edge(self, tenant: str, edge: str) -> ConfigDesired | None:
        """Return the desired configuration of an edge; None if it is unknown.

        If a part cannot be read, the edge keeps its configuration: leaving the part out would put other settings into
        force.
        """
        if any(name.startswith(f"{tenant}/") for name in self._groups.unusable):
            return None
        names = [config_name(tenant, GROUP_OF_EDGES, group) for group in self._groups.of_edge(tenant, edge)]
        names.append(config_name(tenant, EDGE, edge))
        if any(name in self.unusable for name in names):
            return None
        layers: list[tuple[str, int, str]] = []
        for name in names:
            document = self._documents.get(name)
            if document is None:
                continue
            if is_reached(document, edge):
                text, revision = document.text, document.revision
            else:
                text, revision = document.before, document.before_revision
            if text is not None:
                layers.append((name, revision, text))
        if len(layers) > LAYERS_MAX:
            if len(self.unusable) < CROWDED_MAX:
                why = f"the edge is in groups with {len(layers)} layers of settings, more than {LAYERS_MAX}"
                self.unusable[names[-1]] = why
            return None
        key = tuple((name, revision) for name, revision, _ in layers)
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= KNOWN_MAX:
                self._made.clear()
            made = self._made[key] = desired_of(
                [ConfigLayer(" ".join(name.split("/")[1:]), revision, text) for name, revision, text in layers]
            )
        return made


# Changes of the configurations of edges, and the steps of their rollouts: decisions for ``ClusterLog.append``.


ConfigKey = tuple[str, str, str]
"""(tenant, ``edge`` or ``group``, name)"""


def set_config(key: ConfigKey, text: str, rollout: RolloutDocument | None = None, *, again: bool = False) -> Decision:
    """Declare the settings of an edge or a group.

    Args:
        text: YAML.
        rollout: the shares of the group's edges that get the settings first.
        again: declare the settings even if they are unchanged, so that edges that refused or reverted them try again.

    Raises:
        CannotDeclare: the text has what a hub may not set, or is no YAML; from the decision: the tenant or the group is
            unknown, a rollout continues, or an edge may be in too many groups with settings.
    """
    if wrong := [each for each in (key[0], key[2]) if not valid_name(each)]:
        raise CannotDeclare(f"{wrong[0]!r} is not a valid name: {NAME_RULE}")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise CannotDeclare(f"the settings have {len(text)} characters; the limit is {TEXT_CHARACTERS_MAX}")
    if rollout is not None and key[1] == EDGE:
        raise CannotDeclare("a single edge has no share: name a group (--group)")
    try:
        check_overlay(text)
        if problems := unreadable_in(text):
            raise ConfigError(problems)
        for pattern in topic_patterns(text):
            check_pattern(pattern)
    except InvalidTopic as error:
        raise CannotDeclare(f"the hub's configuration: streams: {error}") from None
    except ConfigError as error:
        raise CannotDeclare(str(error)) from None
    name = config_name(*key)

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        if key[1] != EDGE:
            known_fact(state, GROUP, stream_name((key[0], key[2])))
        fact = state.facts(CONFIG).get(name)
        before = None if fact is None else read_fact(name, CONFIG, fact.document, ConfigDocument)
        if before is not None and _is_open(before):
            raise CannotDeclare(f"a rollout of {name} continues: end it first (`weft hub config rollout abort`)")
        if before is not None and before.text == text and not again:
            return None
        old = (None, 0) if before is None or rollout is None else (before.text, before.revision)
        if fact is None and key[1] != EDGE:
            check_layers(state, (key[0], key[2]))
        document = ConfigDocument(text, state.n + 1, *old, rollout)
        return _change(name, document, None if fact is None else fact.document)

    return decide


def remove_config(key: ConfigKey) -> Decision:
    """Withdraw the settings of an edge or a group. Its edges return to the settings of the layers below.

    Raises:
        CannotDeclare: from the decision: there are none.
    """
    name = config_name(*key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, CONFIG, name)
        return Change(CONFIG, name, None)

    return decide


def widen(key: ConfigKey, share: float, failures: int) -> Decision:
    """Give the new settings to a larger share of the group's edges. At a share of 1 the rollout is done.

    Args:
        failures: number of edges that refused or reverted so far, which no longer count.

    Raises:
        CannotDeclare: from the decision: there is no rollout, or the share is not larger.
    """

    def next_of(rollout: RolloutDocument) -> RolloutDocument:
        if share < rollout.share or (share == rollout.share and rollout.state == "running"):
            raise CannotDeclare(f"expected a share of more than {rollout.share:.0%}, which the rollout has reached")
        return msgspec.structs.replace(
            rollout,
            share=share,
            state="done" if share >= 1.0 else "running",
            why="",
            forgiven=max(rollout.forgiven, failures),
        )

    return _step(key, next_of)


def stop(key: ConfigKey, share: float, why: str) -> Decision:
    """Stop a rollout at its share: no further edge gets the new settings.

    Raises:
        CannotDeclare: from the decision: there is no such rollout.
    """

    def stopped(rollout: RolloutDocument) -> RolloutDocument | None:
        if rollout.share != share or rollout.state != "running":
            return None  # it continued, or stopped, meanwhile
        return msgspec.structs.replace(rollout, state="stopped", why=why[:500])

    return _step(key, stopped)


def advance(key: ConfigKey, share: float) -> Decision:
    """Take the next step of an automatic rollout, unless it has left this share meanwhile."""

    def advanced(rollout: RolloutDocument) -> RolloutDocument | None:
        if rollout.share != share or rollout.state != "running":
            return None
        following = next((step for step in sorted(rollout.steps) if step > share), None)
        if following is None:
            return None
        return msgspec.structs.replace(rollout, share=following, state="done" if following >= 1.0 else "running")

    return _step(key, advanced)


def abort(key: ConfigKey, why: str) -> Decision:
    """End a rollout: the edges that it reached go back to the settings before it.

    Raises:
        CannotDeclare: from the decision: there is no rollout.
    """
    name = config_name(*key)

    def decide(state: ClusterState) -> Change:
        document, rollout, fact = _rollout(state, name)
        ended = ConfigDocument(
            document.before,
            max(1, document.before_revision),
            rollout=msgspec.structs.replace(rollout, share=1.0, state="aborted", why=why[:500]),
        )
        return _change(name, ended, fact)

    return decide


def _step(key: ConfigKey, change: Callable[[RolloutDocument], RolloutDocument | None]) -> Decision:
    name = config_name(*key)

    def decide(state: ClusterState) -> Change | None:
        document, rollout, fact = _rollout(state, name)
        changed = change(rollout)
        if changed is None or changed == rollout:
            return None
        return _change(name, msgspec.structs.replace(document, rollout=changed), fact)

    return decide


def _rollout(state: ClusterState, name: str) -> tuple[ConfigDocument, RolloutDocument, bytes]:
    known_fact(state, CONFIG, name)
    fact = state.facts(CONFIG)[name].document
    document = read_fact(name, CONFIG, fact, ConfigDocument)
    if document.rollout is None or not _is_open(document):
        raise CannotDeclare(f"there is no rollout of {name} that continues")
    return document, document.rollout, fact


def _is_open(document: ConfigDocument) -> bool:
    return document.rollout is not None and document.rollout.state in ("running", "stopped")


def _change(name: str, document: ConfigDocument, before: bytes | None) -> Change:
    data = encode(document, before)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CannotDeclare(
            f"the settings before and those of the rollout have {len(data)} bytes together, more than "
            f"{DOCUMENT_BYTES_MAX >> 10} KiB: shorten them"
        )
    return Change(CONFIG, name, data)


GROUP_EDGES_MAX = 4096
"""Maximum number of names and patterns of a group; a document has room for some thousand."""


class GroupDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group of edges; the name of the fact is TENANT/GROUP."""

    edges: Annotated[tuple[str, ...], Meta(max_length=GROUP_EDGES_MAX)]
    """Names and patterns of edges."""
    order: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """Precedence among the groups of an edge: settings of a higher one override. Equal ones are ordered by name."""


Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]


class RolloutDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a rollout: the share of a group's edges that gets the new settings."""

    share: Share
    state: Literal["running", "stopped", "aborted", "done"] = "running"
    steps: Annotated[tuple[Share, ...], Meta(max_length=32)] = ()
    """Shares that follow automatically, each once enough edges of the one before have confirmed; empty: by command
    only."""
    failures_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Number of edges that refuse or revert the settings at which the rollout stops."""
    forgiven: Annotated[int, Meta(ge=0)] = 0
    """Number of such edges when an operator last continued the rollout."""
    why: Annotated[str, Meta(max_length=500)] = ""
    """Reason of the state."""


class ConfigDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings for an edge or a group; the name of the fact is TENANT/edge/EDGE or TENANT/group/GROUP."""

    text: _Text | None
    """YAML; None in an aborted rollout of a group that had none."""
    revision: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    """Number of the entry that declared the text: its version for the edges."""
    before: _Text | None = None
    """Text of the edges that a rollout has not reached; None for none."""
    before_revision: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    rollout: RolloutDocument | None = None
    """None: all edges have the text."""
